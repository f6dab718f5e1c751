"""`levada erase`: erases keys from a table, its former states and its files, and lists what may still have them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer

from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.local_engine import local_engine
from levada.cli.output import Output, console, error_console, working, write_json
from levada.cli.signals import StopSignals
from levada.errors import NeedsOperator
from levada.printable import counted, unreadable_reason
from levada.runtime.host.engine_api import ERASURES, EngineWork
from levada.runtime.host.table_requests import verifiable_tables
from levada.spec import Manifests

Key: TypeAlias = "str | dict[str, str]"

_POLL_S: Final = 0.3
_MOST_BYTES: Final = 700_000
"""The bytes of keys in one request. An engine refuses a body above 1 MiB."""


@dataclass(frozen=True, slots=True)
class EraseCommand:
    """The arguments of the command. ``keys`` are texts of the command line, and ``file`` has one key in each line."""

    manifests: Manifests
    manifest: Path
    secrets: Path | None
    work_dir: Path
    table: str
    keys: Sequence[str]
    file: Path | None = None
    dry_run: bool = False
    cuts: bool = False
    anyway: bool = False
    confirmed: bool = False


def erase(command: EraseCommand, output: Output) -> Exit:
    """Erase the keys, after asking for confirmation unless it is given, and print what was removed.

    Before it asks, it prints what would be removed.
    """
    keys = [parsed(text) for text in command.keys]
    if command.file is not None:
        keys += file_keys(command.file)
    if not keys:
        raise typer.BadParameter("give at least one key, or --file", param_hint="KEY")
    manifests, secrets, work_dir = command.manifests, command.secrets, command.work_dir
    (name,) = verifiable_tables(manifests, [command.table], secrets=secrets)
    request = {"table": name.quoted, "cuts": command.cuts, "anyway": command.anyway}
    prepare(manifests)
    with (
        StopSignals() as signals,
        local_engine(manifests, command.manifest, secrets, work_dir, signals, "erase MANIFEST TABLE KEY") as api,
    ):
        client = EngineWork(api, ERASURES)
        if command.dry_run:
            return _show(_run(client, {**request, "dryRun": True}, keys, signals), output)
        if not command.confirmed:
            for line in lines(_run(client, {**request, "dryRun": True}, keys, signals)):
                error_console().print(line, markup=False, soft_wrap=True)
            if not typer.confirm("Erase them? This cannot be undone.", err=True):
                raise typer.Abort
        return _show(_run(client, {**request, "dryRun": False}, keys, signals), output)


def file_keys(file: Path) -> list[Key]:
    """Return the keys of a file, which has one in each line."""
    try:
        # A file of a spreadsheet may begin with a byte order mark.
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {unreadable_reason(error)}", param_hint="--file") from None
    # Not by splitlines, which also ends a line at characters that a key may have.
    return [parsed(line) for line in text.split("\n") if line.strip()]


def parsed(text: str) -> Key:
    """Return a key from its text: an object of JSON with the key columns, a string of JSON, or the value itself. Pure.

    Numbers of JSON keep their digits.
    """
    if not text.lstrip().startswith(("{", '"')):
        return text.strip()
    try:
        found = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except ValueError:
        return text.strip()
    if isinstance(found, str):
        return found
    values = {name: _text(value) for name, value in found.items()}
    if None in values.values():
        # The value itself is not repeated, as the key is a person's.
        raise typer.BadParameter("a key in JSON has text, numbers, true or false for each column", param_hint="KEY")
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else None


def in_requests(keys: Sequence[Key], most_bytes: int = _MOST_BYTES) -> Iterator[list[Key]]:
    """Yield the keys in lists whose JSON has at most ``most_bytes`` bytes, but at least one key each. Pure."""
    part: list[Key] = []
    size = 0
    for key in keys:
        more = len(json.dumps(key)) + 2
        if part and size + more > most_bytes:
            yield part
            part, size = [], 0
        part.append(key)
        size += more
    if part:
        yield part


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of the requests of one command as one result. Pure."""
    whole = dict(results[-1])
    for name in ("keys", "atSource", "rows", "files", "states", "unreferencedFiles"):
        whole[name] = sum(result[name] for result in results)
    whole["cuts"] = sorted({cut for result in results for cut in result["cuts"]})
    return whole


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of a result. Pure."""
    would = "would be " if result["dryRun"] else ""
    yield f"{result['table']}: {counted(result['keys'], 'key')} at {result['lsn']}"
    removed = [
        counted(result["rows"], "row"),
        f"{counted(result['files'], 'file')} written again without them",
        counted(result["states"], "former state"),
        *([counted(result["unreferencedFiles"], "unreferenced file")] if result["unreferencedFiles"] else []),
    ]
    if not (result["rows"] or result["files"] or result["states"] or result["unreferencedFiles"]):
        removed = ["nothing, as no file of the table has these keys"]
    yield f"  {would}removed: {', '.join(removed)}"
    if result["cuts"]:
        have = "have the rows, so --cuts is needed" if result["dryRun"] else "are without the table now"
        yield f"  cuts that {have}: {', '.join(result['cuts'])}"
    if result["dryRun"] and result["atSource"]:
        yield f"  the source still has {counted(result['atSource'], 'row')} with these keys: delete them there first"
    for place in result["remaining"]:
        until = f", until {place['until']}" if place["until"] else ""
        yield f"  may still have them: {place['where']}{until}"


def _show(result: Mapping[str, Any], output: Output) -> Exit:
    if output is Output.JSON:
        write_json(dict(result))
    else:
        for line in lines(result):
            console().print(line, markup=False, soft_wrap=True)
    return Exit.OK


def _run(client: EngineWork, request: Mapping[str, Any], keys: Sequence[Key], signals: StopSignals) -> dict[str, Any]:
    return merged([_wait(client, client.start({**request, "keys": part}), signals) for part in in_requests(keys)])


def _wait(client: EngineWork, number: int, signals: StopSignals) -> Mapping[str, Any]:
    """Wait for the end of an erasure, and return its result. Raise its error."""
    told, cancelled = "", False
    with working("erasing"):
        while not (state := client.state(number))["finished"]:
            if state["step"] != told:
                told = state["step"]
                error_console().print(told, markup=False)
            if signals.received is not None and not cancelled:
                client.cancel(number)
                cancelled = True
            time.sleep(_POLL_S)
    if (error := state.get("error")) is not None:
        raise NeedsOperator(error["code"], error["message"], hint=error["hint"])
    result: Mapping[str, Any] = state["result"]
    return result
