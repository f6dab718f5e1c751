"""Seeds each fault of the list into a copy of the tree, and reports which tier of tests finds it.

Run ``python -m tests.mutants``, or with the names of faults. It ends with 1 if no tier finds one of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault, read_faults
from tests.mutants.tiers import TIERS, Tier, run_tests, steps
from tests.mutants.tree import TreeCopy

_DOUBTS = 3
"""The failures in one run of a tier that occur without the fault too, after which the run counts as passed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first test that found a fault, with its tier, and the time of all runs up to then. Empty if none did."""

    fault: Fault
    tier: str
    test: str
    wall_s: float
    cpu_s: float


class Search:
    """Runs the tiers on one fault after another."""

    def __init__(self, tree: TreeCopy, tiers: tuple[Tier, ...], workers: int) -> None:
        self._tree = tree
        self._tiers = tiers
        self._workers = workers
        self._log = tree.folder.with_name("pytest.log")
        self._sound: set[str] = set()

    def search(self, fault: Fault) -> Finding:
        """Run the tiers in order until a test finds the fault."""
        wall = cpu = 0.0
        for tier in self._tiers:
            for select in steps(tier, fault, self._workers):
                excluded: list[str] = []
                while len(excluded) < _DOUBTS:
                    with self._tree.fault(fault):
                        run = run_tests(self._tree, [*select, *(f"--deselect={test}" for test in excluded)], self._log)
                    wall, cpu = wall + run.wall_s, cpu + run.cpu_s
                    if not run.failed:
                        break
                    if self._passes(run.failed[0]):
                        return Finding(fault, tier.name, run.failed[0], wall, cpu)
                    print(f"{fault.name}: {run.failed[0]} fails without it too", file=sys.stderr, flush=True)
                    excluded.append(run.failed[0])
        return Finding(fault, "", "", wall, cpu)

    def _passes(self, test: str) -> bool:
        """Return True if the test passes without the fault. A server that cannot start finds no fault."""
        if test not in self._sound and not run_tests(self._tree, [test, "-n", "0"], self._log).failed:
            self._sound.add(test)
        return test in self._sound


def markdown(findings: list[Finding]) -> str:
    """Return the table of the findings."""
    lines = ["| Fault | Rule | Tier | Found by | Wall s | CPU s |", "|---|---|---|---|---:|---:|"]
    for f in findings:
        cells = f.fault.name, f.fault.rule, f.tier or "none", f"`{f.test}`" if f.test else ""
        lines.append(f"| {' | '.join(cells)} | {f.wall_s:.0f} | {f.cpu_s:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Search for the faults of the command line, or for all of them."""
    every = {fault.name: fault for fault in read_faults()}
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults of tests/mutants/faults.toml")
    parser.add_argument("--tier", choices=[t.name for t in TIERS], default=TIERS[-1].name, help="the last tier to run")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (default: 2)")
    parser.add_argument("--report", type=Path, help="file for the table, as Markdown")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(every):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    last = [t.name for t in TIERS].index(arguments.tier)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="levada-mutants-") as folder:
        Path(folder).chmod(0o755)  # A server that runs as another user reads files of the copy.
        search = Search(TreeCopy.make(Path(folder) / "tree"), TIERS[: last + 1], arguments.workers)
        for name in arguments.names or every:
            found = search.search(every[name])
            findings.append(found)
            times = f"{found.wall_s:.0f} s, CPU {found.cpu_s:.0f} s"
            print(f"{name}: {found.tier or 'not found'} {found.test} ({times})", flush=True)
            if arguments.report:
                arguments.report.write_text(markdown(findings))
    passed = sum(bool(f.test) for f in findings)
    print(f"\n{markdown(findings)}\n{passed} passed, {len(findings) - passed} failed")
    return 0 if passed == len(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
