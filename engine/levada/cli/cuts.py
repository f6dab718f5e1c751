"""`levada cut` and `levada cuts`: keep all tables as of one LSN, drop such a cut, and list the cuts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.local_engine import local_engine, running_engine
from levada.cli.output import Output, console, working, write_json
from levada.cli.signals import StopSignals
from levada.errors import Transient
from levada.printable import counted
from levada.runtime.host.cuts_client import CutsClient, stored_cuts
from levada.spec import Manifests
from levada.status import CutPhase, CutProgress, utc_text

_POLL_S: Final = 0.3
_MOST_SILENCE_S: Final = 60.0
"""Seconds for which an engine may have no running pipeline, as after a change of the destination's Secret."""
_STORED: Final = "no engine answers. This is the list in the store, which the next engine compares with the tables"
_ENDED: Final = (CutPhase.COMPLETE, CutPhase.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class CutCommand:
    """The arguments of the command. With ``partial``, tables may be left out."""

    manifests: Manifests
    manifest: Path
    secrets: Path | None
    work_dir: Path
    name: str
    partial: bool = False
    drop: bool = False


def cut(command: CutCommand, output: Output) -> Exit:
    """Make or drop a cut, wait until that is done, and print it.

    Return FAILED if it lacks a table unexpectedly, or if a signal ended the wait.
    """
    manifests, secrets, work_dir = command.manifests, command.secrets, command.work_dir
    prepare(manifests)
    with (
        StopSignals() as signals,
        local_engine(manifests, command.manifest, secrets, work_dir, signals, "cut MANIFEST NAME") as api,
    ):
        client = CutsClient(api)
        if command.drop:
            client.drop(command.name)
            with working("dropping the cut"):
                is_dropped = await_drop(client, command.name, signals)
            console().print(f"cut {command.name} is {'' if is_dropped else 'being '}dropped", markup=False)
            return Exit.OK if is_dropped else Exit.FAILED
        client.request(command.name, partial=command.partial)
        with working("waiting for the tables"):
            found = await_end(client, command.name, signals)
    if output is Output.JSON:
        write_json(found.to_json())
    else:
        for line in lines(found):
            console().print(line, markup=False)
    complete = found.phase == CutPhase.COMPLETE or (command.partial and found.phase == CutPhase.INCOMPLETE)
    return Exit.OK if complete else Exit.FAILED


def await_end(
    client: CutsClient, name: str, signals: StopSignals, most_silence_s: float = _MOST_SILENCE_S
) -> CutProgress:
    """Wait until the cut has ended, or until a signal. Raise Transient ``cut_lost`` if there is no such cut."""
    found = CutProgress(name=name, phase=CutPhase.REQUESTED)
    for known in _listed_again(client, signals, most_silence_s):
        if name not in (by_name := {cut.name: cut for cut in known}):
            raise Transient(
                "cut_lost",
                f"cut {name} was not made: it was dropped, or the engine was restarted before it began",
                hint="run the command again",
            )
        if (found := by_name[name]).phase in _ENDED:
            break
    return found


def await_drop(client: CutsClient, name: str, signals: StopSignals) -> bool:
    """Wait until the cut is dropped, and return True, or until a signal. Another cut may have its name by then."""
    lists = _listed_again(client, signals, _MOST_SILENCE_S)
    return any(all(cut.name != name or cut.phase != CutPhase.DROPPING for cut in known) for known in lists)


def _listed_again(client: CutsClient, signals: StopSignals, most_silence_s: float) -> Iterator[tuple[CutProgress, ...]]:
    """Yield the cuts again and again until a signal. Raise Transient ``engine_not_running`` if the pipeline ended."""
    last = time.monotonic()
    while signals.received is None:
        if (known := client.cuts()) is not None:
            last = time.monotonic()
            yield known
        elif time.monotonic() - last > most_silence_s:
            raise Transient(
                "engine_not_running",
                "the pipeline has ended, and does not run again",
                hint="levada status MANIFEST shows why. The next run continues a cut that has begun",
            )
        time.sleep(_POLL_S)


def cuts(manifests: Manifests, secrets: Path | None, work_dir: Path, output: Output) -> Exit:
    """List the cuts, of the running engine or else in the store."""
    api = running_engine(manifests, secrets, work_dir)
    found = None if api is None else CutsClient(api).cuts()
    if stored := found is None:
        found = stored_cuts(manifests, secrets)
    if output is Output.JSON:
        write_json({"pipeline": manifests.pipeline.metadata.name, "cuts": [cut.to_json() for cut in found]})
    else:
        for line in listed(found):
            console().print(line, markup=False)
        if stored and found:
            console().print(_STORED, style="dim")
    return Exit.OK


def listed(found: Sequence[CutProgress]) -> Iterator[str]:
    """Return the lines of the list. Pure."""
    if not found:
        yield "no cuts"
    for each in found:
        yield from lines(each)


def lines(found: CutProgress) -> Iterator[str]:
    """Return the lines of one cut. Pure."""
    state, tables = found.phase.lower(), f"{found.tagged} of {counted(found.tables, 'table')}"
    if found.lsn is None or found.at is None:
        yield f"{found.name}: {state}"
        return
    committed = "" if found.committed_at is None else f", last commit {utc_text(found.committed_at)}"
    yield f"{found.name}: {state} at {found.lsn}, {tables}, {utc_text(found.at)}{committed}"
    for why in found.left_out:
        yield f"  without {why}"
