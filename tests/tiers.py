"""Which tests belong to which tier, and which of them share a process.

Both follow from the fixtures that a test requests. A test that starts a server or a JVM by itself requests the fixture
that stands for it (`start_postgres`, `own_jvm`). `refuse_undeclared_servers` ends a test that does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

NEEDS: Final = {
    "start_postgres": "postgres",
    "spark": "spark",
    "own_jvm": "jvm",
    "engine": "jvm",
    "s3": "jvm",
    "opensearch": "opensearch",
    "bigquery": "bigquery",
    "browser": "browser",
    "cluster": "cluster",
}
"""What each fixture starts. Every other fixture that needs one of these requests it."""

_SHARED: Final = ("spark", "opensearch", "bigquery", "browser")
"""Servers that cost a dozen CPU seconds to start. All tests that need one run in one process, in this order."""

_PROGRAMS: Final = {"pg_ctl": "postgres", "initdb": "postgres", "java": "jvm"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier and its group. Those whose group takes longest come first."""
    for item in items:
        needs = needs_of(item)
        item.stash[_NEEDS] = needs
        if not needs:
            item.add_marker("quick")
        if needs <= {"postgres"}:
            item.add_marker("near")
        if "faults" in item.path.parts or _is_same_for_another_form(item):
            item.add_marker("nightly")
        item.add_marker(pytest.mark.xdist_group(_group(item, needs)))
    items.sort(key=lambda item: _rank(item.stash[_NEEDS]))


_NEEDS: Final = pytest.StashKey[frozenset[str]]()


def needs_of(item: pytest.Item) -> frozenset[str]:
    """Return what a test needs. A parameter that is the name of a fixture requests it."""
    names = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    names |= {value for value in (callspec.params.values() if callspec else ()) if isinstance(value, str)}
    # No public interface has the fixtures that `request.getfixturevalue` would return.
    fixtures: Any = item.session._fixturemanager
    waiting, seen = list(names), set(names)
    while waiting:
        for fixture in fixtures.getfixturedefs(waiting.pop(), item) or ():
            waiting += set(fixture.argnames) - seen
            seen |= set(fixture.argnames)
    return frozenset(NEEDS[name] for name in seen & NEEDS.keys())


def _group(item: pytest.Item, needs: frozenset[str]) -> str:
    """Return the name of the process's work that the test is part of. A file's tests share their servers."""
    return next((need for need in _SHARED if need in needs), str(item.path))


def _rank(needs: frozenset[str]) -> int:
    """Return the place of a test's group among those to be started."""
    return next((rank for rank, need in enumerate(_SHARED) if need in needs), len(_SHARED) + ("jvm" not in needs))


def _is_same_for_another_form(item: pytest.Item) -> bool:
    """Return True for a test of a conformance suite that cannot differ between two forms of a destination."""
    differing = getattr(getattr(item, "cls", None), "differing", None)
    function = getattr(item, "function", None)
    if differing is None or function is None:
        return False
    return not any(function.__name__ in vars(part) for part in differing)


_running: list[pytest.Item] = []
_undeclared: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the test that runs, for the audit of the programs that it starts."""
    _running.append(item)
    _undeclared.clear()
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.fixture(autouse=True)
def refuse_undeclared_servers() -> Iterator[None]:
    """Fail a test that started a server although none of its fixtures says so: it would be in the wrong tier."""
    yield
    if _undeclared:
        pytest.fail(f"this test starts {', '.join(_undeclared)}. Request a fixture of tests.tiers.NEEDS that says so")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or not _running:
        return
    program = Path(os.fsdecode(arguments[0])).name
    needs = _running[-1].stash.get(_NEEDS, frozenset())
    if _PROGRAMS.get(program, "") not in needs | _implied(needs) | {""}:
        _undeclared.append(program)


def _implied(needs: Iterable[str]) -> set[str]:
    """Return what the servers of these names are started with."""
    return {"jvm"} if {"spark", "opensearch"} & set(needs) else set()


sys.addaudithook(_audit)
