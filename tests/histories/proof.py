"""Shows the power of the search: seeds faults that a table shows after several statements, and searches for each.

Run ``python -m tests.histories.proof``, or with the names of faults. It prints the shortened history of each one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.histories.__main__ import FOUND
from tests.mutants.faults import read_faults
from tests.mutants.tree import TreeCopy

WORLDS: Final = {
    "key_has_the_order_of_the_index": ("ducklake-18", "rows in the lake"),
    "root_with_another_identity_has_no_rows": ("ducklake-18", "unknown_relation"),
    "renamed_table_vanishes": ("ducklake-18", "vanished"),
    "partition_value_wraps": ("iceberg-18-partitioned", "hides rows"),
    "names_folded_in_one_step": ("iceberg-18", "for one"),
    "columns_without_a_row_are_not_marked": ("ducklake-16-notrigger", "columns"),
    "a_generated_key_identifies_rows": ("ducklake-16", ""),
    "a_list_is_repeated_zero_times": ("iceberg-18", "internal_error"),
    "an_emptied_table_is_rewritten": ("ducklake-18", "table_rewritten"),
    "a_partition_that_returns_is_the_same": ("ducklake-16-notrigger", ""),
    "a_column_is_the_one_that_has_its_name_now": ("ducklake-16-notrigger", "columns"),
    "a_key_that_returns_is_the_same": ("ducklake-16-notrigger-resync", "rows in the lake"),
    "a_partition_that_was_streamed_is_forgotten": ("ducklake-16-notrigger", "rows in the lake"),
}
"""The faults of the rule "histories" in `tests.mutants`, each with a world in which it shows, and its sign there.

An empty sign stands for any.
"""
ALSO: Final = {"a_generated_key_identifies_rows": "a_key_may_lack_a_part"}
"""Faults that are seeded together with one of these, because each alone is caught by the other's rule."""


def main() -> int:
    """Search for the faults of the command line, or for all of them. Return 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.proof", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORLDS))
    parser.add_argument("--minutes", type=float, default=20, help="the time for each fault")
    options = parser.parse_args()
    faults, missing = {fault.name: fault for fault in read_faults()}, 0
    with tempfile.TemporaryDirectory(prefix="levada-proof-") as folder:
        Path(folder).chmod(0o755)  # A server that runs as another user reads files of the copy.
        tree = TreeCopy.make(Path(folder) / "tree")
        for name in options.names or WORLDS:
            begun, (world, sign) = time.monotonic(), WORLDS[name]
            command = ["-m", "tests.histories", "--first", sign, "--world", world, "--minutes", str(options.minutes)]
            with ExitStack() as stack:
                for one in filter(None, (name, ALSO.get(name))):
                    stack.enter_context(tree.fault(faults[one]))
                found = subprocess.run([tree.python, *command], cwd=tree.folder, check=False).returncode == FOUND
            missing += not found
            print(f"{name}: {'found' if found else 'not found'}, {time.monotonic() - begun:.0f} s", flush=True)
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main())
