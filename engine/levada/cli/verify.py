"""`levada verify`: requests a verification from the running engine, or runs one for that, and prints the results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.hints import runnable
from levada.cli.local_engine import local_engine
from levada.cli.output import Output, console, error_console, working, write_json
from levada.cli.signals import StopSignals
from levada.printable import counted
from levada.runtime.host.engine_api import VERIFICATIONS, EngineWork
from levada.runtime.host.table_requests import verifiable_tables
from levada.spec import Manifests

_POLL_S: Final = 0.3
_LEASE_S: Final = 30.0
"""Seconds after which the engine ends a verification whose command is gone."""


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
        "tables": [name.quoted for name in names],
        "sample": command.sample,
        "repair": command.repair,
        "examples": command.examples,
        "showValues": command.show_values,
        "leaseSeconds": _LEASE_S,
    }
    prepare(command.manifests)
    manifests, secrets, work_dir = command.manifests, command.secrets, command.work_dir
    with (
        StopSignals() as signals,
        local_engine(manifests, command.manifest, secrets, work_dir, signals, "verify MANIFEST") as api,
    ):
        client = EngineWork(api, VERIFICATIONS)
        number = client.start(request)
        with working("verifying"):
            state, begun, told = client.state(number), time.monotonic(), ""
            while not state["finished"]:
                if state["step"] != told:
                    told = state["step"]
                    error_console().print(f"{told} ({time.monotonic() - begun:.0f} s)", markup=False)
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
    """Return the exit code: different if a table differs, failed if one could not be compared or repaired. Pure."""
    if any(not (result.get("equal", True) or result["repairedEqual"]) for result in results):
        return Exit.DIFFERENT
    failed = any("error" in result or "repairError" in result for result in results)
    return Exit.FAILED if failed else Exit.OK


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of one table's result. Pure."""
    table = result["table"]
    if (error := result.get("error")) is not None:
        yield f"{table}: not compared: {error['message']} [{error['code']}]"
        if error["hint"]:
            yield f"  hint: {runnable(error['hint'])}"
        return
    rows = result["rows"]
    part = "" if result["sample"] >= 1 else f", values of {result['sample']:.2%} of the rows and all keys compared"
    if result["equal"]:
        kept = f" and {counted(result['kept'], 'kept row')}" if result["kept"] else ""
        yield f"{table}: equal at {result['lsn']}, {counted(rows['source'], 'row')}{kept}{part}"
    else:
        found = ", ".join(f"{count} {kind}" for kind, count in result["differences"].items())
        sides = f"source {counted(rows['source'], 'row')}, destination {counted(rows['destination'], 'row')}{part}"
        if not any(rows.values()):
            # A file at the destination cannot be read.
            sides = "no row was compared"
        yield f"{table}: different at {result['lsn']}: {found or 'see below'} ({sides})"
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
        yield f"  {counted(result['unexaminedChunks'], 'more chunk')} of rows differ, whose keys were not compared"
    for column in result["notCompared"]:
        yield f"  not compared: {column}"
    if (refused := result.get("repairError")) is not None:
        yield f"  not repaired: {refused['message']} [{refused['code']}]"
        if refused["hint"]:
            yield f"  hint: {runnable(refused['hint'])}"
    if result["repairedEqual"]:
        yield f"  repaired: {counted(result['repaired'], 'key')}, compared again: equal"
