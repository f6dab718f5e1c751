"""The tier of each test, and the tests that share a process.

Both follow from the fixtures that a test requests. A test that starts a server, a JVM or a Python by itself requests
the fixture for it (`start_postgres`, `own_jvm`, `own_process`). `refuse_undeclared_programs` fails a test that does
not.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

NEEDS: Final = {
    "start_postgres": "postgres",
    "spark": "spark",
    "own_jvm": "jvm",
    "own_process": "process",
    "processes": "process",
    "engine": "jvm",
    "s3": "jvm",
    "service": "process",
    "opensearch": "opensearch",
    "bigquery": "bigquery",
    "browser": "browser",
    "cluster": "cluster",
}
"""The need of each fixture that starts something. Every other fixture that needs one of these requests it."""

_MOST: Final = {"quick": frozenset[str](), "near": frozenset({"postgres", "process"})}
"""The most that a test of a tier needs."""

_WITHOUT_JVM: Final = frozenset({"target"})
"""Destinations of `engine` that need no Spark."""

_SHARED: Final = ("spark", "opensearch", "bigquery", "browser")
"""Servers that cost a dozen CPU seconds to start. All tests that need one run in one process."""

_PROGRAMS: Final = frozenset({"pg_ctl", "initdb", "java", "bash", *(f"python{version}" for version in ("", "3"))})
"""Programs that no quick test starts. A Python with Levada costs a CPU second."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options: another server, and the one that finds tests which depend on those of another file."""
    parser.addoption("--server", type=int, metavar="VERSION", help="run the tests on this version of PostgreSQL")
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run the files in the random order of this seed")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report the server and the seed of the order, if they are not the usual ones."""
    server, seed = config.getoption("--server"), config.getoption("--shuffle-files")
    said = [] if server is None else [f"PostgreSQL {server}"]
    return (
        ", ".join([*said, f"files in the random order of --shuffle-files {seed}"] if seed is not None else said) or None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier and its group. Those whose group takes longest come first, or files are shuffled."""
    server = config.getoption("--server")
    begun: set[str] = set()
    for item in items:
        newer = item.get_closest_marker("since")
        if server is not None and newer is not None and server < newer.args[0]:
            item.add_marker(pytest.mark.skip(reason=f"PostgreSQL has it since version {newer.args[0]}"))
        needs = needs_of(item)
        item.stash[_NEEDS] = needs
        if "faults" in item.path.parts or _is_another_part(item) or _is_long_scenario(item, needs):
            item.add_marker("nightly")
        if item.get_closest_marker("sampled") and item.get_closest_marker("nightly") is None:
            function = item.nodeid.partition("[")[0]
            if function in begun:
                item.add_marker("nightly")
            begun.add(function)
    _leave_products_to_the_night(items)
    for item in items:
        if item.get_closest_marker("nightly") is None:
            for tier in (t for t, most in _MOST.items() if item.stash[_NEEDS] <= most):
                item.add_marker(tier)
    if (seed := config.getoption("--shuffle-files")) is None:
        items.sort(key=lambda item: _rank(item.stash[_NEEDS]))
    else:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    if (worker := getattr(config, "workerinput", None)) is not None and worker["workerid"] == "gw0":
        groups = {item.nodeid: _group(item, item.stash[_NEEDS]) for item in items}
        Path(worker["groups"]).write_text(json.dumps(groups))


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among all that the import of the tests has made."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the file in which the first worker lists the groups: only workers know the tests' fixtures."""
    node.workerinput["groups"] = str(_groups_file())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Let each group run in one process. xdist's own loadgroup does nothing with this version of pytest."""
    return GroupScheduling(config, log)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Sends all tests of a group to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return _groups()[nodeid]


@cache
def _groups_file() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="levada-groups-")
    atexit.register(folder.cleanup)
    return Path(folder.name) / "groups.json"


@cache
def _groups() -> dict[str, str]:
    """Return the group of each test. Workers have written the file before the first test is scheduled."""
    found: dict[str, str] = json.loads(_groups_file().read_text())
    return found


_NEEDS: Final = pytest.StashKey[frozenset[str]]()
_needs_of_names: Final[dict[tuple[Any, frozenset[str]], frozenset[str]]] = {}
"""The needs of the tests of a file or a class that request the same fixtures."""


def needs_of(item: pytest.Item) -> frozenset[str]:
    """Return what a test needs. A parameter that is the name of a fixture requests it."""
    names = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "request" in names:
        names |= {value for value in callspec.params.values() if isinstance(value, str)}
    of = (item.parent, frozenset(names))
    if of not in _needs_of_names:
        _needs_of_names[of] = _needs_of(item, names)
    return _needs_of_names[of]


def _needs_of(item: pytest.Item, names: set[str]) -> frozenset[str]:
    # No public interface has the fixtures that `request.getfixturevalue` would return.
    fixtures: Any = item.session._fixturemanager
    waiting, seen = list(names), set(names)
    while waiting:
        for fixture in fixtures.getfixturedefs(waiting.pop(), item) or ():
            waiting += set(fixture.argnames) - seen
            seen |= set(fixture.argnames)
    found = seen & NEEDS.keys()
    return frozenset(NEEDS[name] for name in (found - {"engine"} if seen & _WITHOUT_JVM else found))


def _group(item: pytest.Item, needs: frozenset[str]) -> str:
    """Return the name of the process's work that the test is part of. A file's tests share their servers."""
    return next((need for need in _SHARED if need in needs), str(item.path))


def _rank(needs: frozenset[str]) -> int:
    """Return the place of a test's group among those to be started. Short groups fill the end of the run."""
    others = (len(_SHARED) + (0 if "jvm" in needs else 1)) if needs else len(_SHARED) + 2
    return next((rank for rank, need in enumerate(_SHARED) if need in needs), others)


def _is_another_part(item: pytest.Item) -> bool:
    """Return True for a test of a conformance suite that its class does not name for each run.

    The class names parts of the suite, and single tests.
    """
    parts = getattr(getattr(item, "cls", None), "parts_of_each_run", None)
    function = getattr(item, "function", None)
    if parts is None or function is None:
        return False
    return not any(part == item.name if isinstance(part, str) else function.__name__ in vars(part) for part in parts)


def _is_long_scenario(item: pytest.Item, needs: frozenset[str]) -> bool:
    """Return True for a test of `levada run` into Iceberg, a dozen CPU seconds each, that has no mark `always`."""
    runs_an_engine = "engine" in getattr(item, "fixturenames", ())
    return runs_an_engine and "jvm" in needs and item.get_closest_marker("always") is None


def _leave_products_to_the_night(items: list[pytest.Item]) -> None:
    """Let each run take so many cases of a test that needs a server that every value of every parameter occurs."""
    cases: dict[str, list[tuple[pytest.Item, set[object]]]] = {}
    for item in items:
        if hasattr(item, "callspec") and item.stash[_NEEDS] and item.get_closest_marker("nightly") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append((item, _values(item)))
    for left in cases.values():
        missing = set[object]().union(*(values for _, values in left))
        while missing:
            chosen = max(left, key=lambda case: len(case[1] & missing))
            left.remove(chosen)
            missing -= chosen[1]
        for item, _ in left:
            item.add_marker("nightly")


def _values(item: pytest.Item) -> set[object]:
    """Return what each `parametrize` gives a test. Arguments that one of them gives together are one value."""
    given = dict(item.callspec.params)  # type: ignore[attr-defined]  # no public type has it
    values: set[object] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(",", " ").split() if isinstance(mark.args[0], str) else list(mark.args[0])
        values.add(tuple((name, id(given.pop(name))) for name in names if name in given))
    return values | {(name, id(value)) for name, value in given.items()}


# Six thousand tests are imported, and nothing of them is garbage.
gc.disable()

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
def refuse_undeclared_programs() -> Iterator[None]:
    """Fail a quick test that started such a program: no fixture of it says so, and it is in the wrong tier."""
    yield
    if _undeclared:
        pytest.fail(f"this test starts {', '.join(_undeclared)}. Request a fixture of tests.tiers.NEEDS that says so")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _running and _running[-1].get_closest_marker("quick"):
        program = Path(os.fsdecode(arguments[0])).name
        if program in _PROGRAMS:
            _undeclared.append(program)


sys.addaudithook(_audit)
