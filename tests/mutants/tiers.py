"""The tiers of tests, and one run of pytest within a tier."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.faults import Fault
from tests.mutants.tree import TreeCopy
from tests.near import folders

IGNORED: Final = ("tests/cluster", "tests/install", "tests/mutants")
"""Folders without a test that may find a fault: without a cluster, or because they compare the list of faults."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier: the tests that ``marks`` selects, see `tests.tiers`. No tier before it has them."""

    name: str
    marks: str


TIERS: Final = (
    Tier("quick", "quick"),
    Tier("near", "near and not quick"),
    Tier("test", "not near and not nightly"),
    Tier("nightly", "nightly"),
)

_SUMMARY: Final = re.compile(r"^(FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_NO_TESTS: Final = 5


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: the tests that failed or did not start, and the time that it took."""

    failed: tuple[str, ...]
    wall_s: float
    cpu_s: float
    output: str


def run_tests(tree: TreeCopy, select: Sequence[str], log: Path) -> Run:
    """Run the selected tests in the copy until one fails."""
    command = [tree.python, "-m", "pytest", "-q", "-x", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--hypothesis-seed=0", "--color=no", *select]
    before, started = _cpu_s(), time.monotonic()
    with log.open("w") as out:
        environment = {**os.environ, "COLUMNS": "1000"}
        done = subprocess.run(command, cwd=tree.folder, stdout=out, stderr=out, env=environment, check=False)
    wall, cpu, output = time.monotonic() - started, _cpu_s() - before, log.read_text()
    failed = tuple(match[2] for match in _SUMMARY.finditer(output))
    if done.returncode not in (0, _NO_TESTS) and not failed:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{output[-3000:]}")
    return Run(failed, wall, cpu, output)


def steps(tier: Tier, fault: Fault, workers: int) -> tuple[list[str], list[str]]:
    """Return the arguments of pytest for the two runs of a tier: the fault's own tests, then all others."""
    marks, own = ["-m", tier.marks], fault.tests
    left_out = [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in (*IGNORED, *own)]
    below = folders([fault.file]) if tier.name == "near" else ["tests"]
    return [*own, *marks, "-n", "0"], [*below, *marks, *left_out, "-n", str(workers), "--dist", "loadscope"]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
