"""`levada verify`: requests a verification from the running engine, or runs one for that, and prints the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.output import Output, console, working, write_json
from levada.cli.signals import StopSignals
from levada.errors import LevadaError, NeedsOperator
from levada.runtime.host.access_token import request_headers
from levada.runtime.host.engine import Engine
from levada.runtime.host.outcomes import Refused, Suspended
from levada.runtime.host.stored_progress import slot_progress
from levada.runtime.host.table_requests import verifiable_tables
from levada.runtime.host.verify_client import VerifyClient
from levada.runtime.host.work_dir import engine_is_starting, running_address, running_progress
from levada.spec import Manifests
from levada.status import PipelineState

_POLL_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """The arguments of the command. ``tables`` None stands for all tables of the pipeline."""

    manifests: Manifests
    manifest: Path
    secrets: Path | None
    work_dir: Path
    tables: Sequence[str] | None
    sample: float
    repair: bool
    examples: int
    show_values: bool


def verify(command: VerifyCommand, output: Output) -> Exit:
    """Verify the tables and print the results. Return the exit code of `verdict`."""
    names = verifiable_tables(command.manifests, command.tables, secrets=command.secrets)
    request = {
        "tables": [name.argument for name in names],
        "sample": command.sample,
        "repair": command.repair,
        "examples": command.examples,
        "showValues": command.show_values,
    }
    prepare(command.manifests)
    with StopSignals() as signals, _engine(command, signals) as client:
        number = client.start(request)
        with working("verifying"):
            state = client.state(number)
            while not state["finished"]:
                if signals.received is not None:
                    client.cancel(number)
                time.sleep(_POLL_S)
                state = client.state(number)
    if output is Output.JSON:
        write_json({"pipeline": command.manifests.pipeline.metadata.name, "tables": state["tables"]})
    else:
        for line in (line for result in state["tables"] for line in lines(result)):
            console().print(line, markup=False)
    return verdict(state["tables"])


def verdict(results: Sequence[Mapping[str, Any]]) -> Exit:
    """Return the exit code: different if a table differs, failed if one could not be compared. Pure."""
    if any(not (result.get("equal", True) or result["repairedEqual"]) for result in results):
        return Exit.DIFFERENT
    return Exit.FAILED if any("error" in result for result in results) else Exit.OK


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of one table's result. Pure."""
    table = result["table"]
    if (error := result.get("error")) is not None:
        yield f"{table}: not compared: {error['message']} [{error['code']}]"
        if error["hint"]:
            yield f"  hint: {error['hint']}"
        return
    rows = result["rows"]
    part = "" if result["sample"] >= 1 else f", values of {result['sample']:.2%} of the rows and all keys compared"
    if result["equal"]:
        yield f"{table}: equal at {result['lsn']}, {rows['source']} rows{part}"
    else:
        found = ", ".join(f"{count} {kind}" for kind, count in result["differences"].items())
        yield (
            f"{table}: different at {result['lsn']}: {found or 'see below'}"
            f" (source {rows['source']} rows, destination {rows['destination']} rows{part})"
        )
    if result["parked"]:
        yield f"  the table is errored [{result['parked']}] and applied to {result['appliedLsn']} only"
    for problem in result["problems"]:
        yield f"  {problem}"
    for example in result["examples"]:
        key = ", ".join(f"{name}={value}" for name, value in example["key"].items())
        columns = f": {', '.join(example['columns'])}" if example["columns"] else ""
        yield f"  {example['kind']} {key or 'a row'}{columns}"
        for name, both in example.get("values", {}).items():
            yield f"    {name}: {both['source']!r} at the source, {both['destination']!r} at the destination"
    if result["unexaminedChunks"]:
        yield f"  {result['unexaminedChunks']} more chunks of rows differ, whose keys were not compared"
    for column in result["notCompared"]:
        yield f"  not compared: {column}"
    if result["repaired"]:
        yield f"  repaired: {result['repaired']} keys, compared again: equal"


@contextmanager
def _engine(command: VerifyCommand, signals: StopSignals) -> Iterator[VerifyClient]:
    """Yield the running engine of this machine. If none runs anywhere, run one during the block."""
    headers = request_headers(command.manifests, command.secrets)
    name = command.manifests.pipeline.metadata.name
    with working("waiting for the engine, which is starting"):
        while signals.received is None and engine_is_starting(command.work_dir, headers):
            time.sleep(_POLL_S)
    address = running_address(command.work_dir)
    if address is not None and running_progress(command.work_dir, name, headers) is not None:
        yield VerifyClient(address, headers)
        return
    slot = slot_progress(command.manifests, secrets=command.secrets)
    if slot.active:
        raise NeedsOperator(
            "engine_elsewhere",
            f"an engine on another machine or in another work folder streams from slot {slot.name}",
            hint="run the command where the engine runs, for example: kubectl exec POD -- levada verify MANIFEST",
        )
    engine = Engine(command.manifest, secrets=command.secrets, work_dir=command.work_dir)
    signals.call(engine.stop)
    with engine:
        run = _Run(engine)
        try:
            run.wait_running()
            assert engine.address is not None
            yield VerifyClient(engine.address, headers)
        finally:
            engine.stop()
            run.thread.join()


class _Run:
    """A run of the engine in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="levada-engine", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            outcome = self._engine.run()
            if isinstance(outcome, Suspended):
                self._error = NeedsOperator(
                    "pipeline_suspended",
                    f"pipeline {self._engine.name} is suspended",
                    hint="set spec.suspend: false in the manifest",
                )
            elif isinstance(outcome, Refused):
                first = outcome.problems[0]
                self._error = outcome.error or NeedsOperator(first.code, first.message, hint=first.hint)
        except BaseException as error:
            self._error = error

    def wait_running(self) -> None:
        """Wait until the pipeline runs. Raise the error that ended the engine before."""
        with working("starting the engine, because none runs"):
            while self.thread.is_alive():
                progress = self._engine.progress()
                if progress is not None and progress.state is PipelineState.RUNNING:
                    return
                time.sleep(_POLL_S)
        error = self._error or NeedsOperator("pipeline_stopped", f"pipeline {self._engine.name} was stopped")
        if isinstance(error, LevadaError):
            raise error
        raise RuntimeError("the engine ended with an unexpected error") from error
