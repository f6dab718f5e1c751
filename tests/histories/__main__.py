"""Plays random histories: ``python -m tests.histories --minutes 60 --seed 1 --world ducklake-18``."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Final

import pytest
from tests.histories.draw import KINDS
from tests.histories.findings import Meeting, Tally
from tests.histories.search import Search
from tests.histories.world import Form, server

from levada.local.postgres import EmbeddedPostgres

WORLDS = (
    "ducklake-18", "ducklake-16-notrigger-resync", "postgres-18-resync", "ducklake-16-changelog", "iceberg-18-resync",
    "postgres-16-notrigger", "ducklake-17-resync-switched", "ducklake-14-resync", "iceberg-18-v3", "postgres-17",
    "ducklake-15-notrigger", "iceberg-16-changelog", "postgres-14-notrigger-resync", "iceberg-18-partitioned",
    "memory-17-resync", "memory-15-notrigger", "ducklake-17-notrigger-keep", "ducklake-16-leaves",
    "ducklake-18-resync-mark", "iceberg-17-resync-ignore", "ducklake-17-notrigger-append", "iceberg-18-mark",
    "ducklake-18-resync-masks", "ducklake-18-resync-small", "iceberg-18-small", "iceberg-18-resync-stored",
    "ducklake-18-small-stored", "iceberg-18-resync-generated", "postgres-18-generated",
    "iceberg-18-resync-partitioned-small-repartitioned", "ducklake-16-notrigger-resync-small",
    "ducklake-17-resync-edited", "ducklake-18-fixed", "postgres-16-notrigger-edited", "iceberg-18-resync-fixed",
)  # fmt: skip
"""The worlds of a run that names none, in turn. Those whose server is not to be had are left out."""

FOUND: Final = 3
"""The exit code after findings. Python itself ends with 1 after an error."""
_RARE: Final = 8
"""The number of kinds of statements that the report names, because they met few others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play histories until the time is over. Return FOUND if anything was found."""
    options = _parser().parse_args(arguments)
    logging.getLogger("levada").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun, seed = time.monotonic(), options.seed
    with ExitStack() as stack:
        forms = [Form.parse(world) for world in options.world]
        servers = _servers(stack, {form.server for form in forms})
        forms = [form for form in forms if form.server in servers]
        searches = [Search(servers[form.server], form, options.size, options.first or "") for form in forms]
        for search in searches:
            stack.callback(search.close)
        turn = 0
        while turn == 0 or time.monotonic() - begun < options.minutes * 60:  # paced: it plays for the minutes given
            # An engine stays for some batches: many at a time would share two cores.
            search = searches[turn // options.stay % len(searches)]
            search.batch(seed)
            seed, turn = seed + options.size, turn + 1
            if turn % options.stay == 0:
                search.close()
            if options.first is not None and search.findings:
                break
    print_report(searches, time.monotonic() - begun)
    return FOUND if any(search.findings for search in searches) else 0


def _servers(stack: ExitStack, versions: Collection[int]) -> dict[int, EmbeddedPostgres]:
    """Start a server of each version that this machine has, or can fetch."""
    started: dict[int, EmbeddedPostgres] = {}
    for version in sorted(versions):
        try:
            started[version] = stack.enter_context(server(version))
        except pytest.skip.Exception as missing:
            print(missing, flush=True)
    return started


def print_report(searches: Sequence[Search], seconds: float) -> None:
    """Print what was played and found."""
    meetings: set[Meeting] = set()
    for search in searches:
        meetings |= search.tally.meetings
        print(f"{search.form}: {_figures(search.tally)}")
        for (oracle, sign), count in search.counts.most_common():
            print(f"    ({oracle}) {sign}: {count}")
    pairs = {(a, b) for a, b, _ in meetings}
    kinds = {kind for pair in pairs for kind in pair}
    histories = sum(search.tally.histories for search in searches)
    print(
        f"{histories} histories in {seconds / 60:.1f} min, {histories * 3600 / seconds:.0f} per hour,"
        f" {sum(s.tally.rows for s in searches)} rows compared, {len(kinds & KINDS.keys())} of {len(KINDS)} kinds of"
        f" statements, {len(pairs)} pairs on one table of {len(kinds) ** 2}, and"
        f" {sum(one for *_, one in meetings)} in one transaction, {sum(len(s.findings) for s in searches)} findings"
    )
    met = Counter(kind for pair in pairs for kind in pair)
    rare = sorted(KINDS, key=lambda kind: met[kind])[:_RARE]
    print("kinds in the fewest pairs: " + ", ".join(f"{kind} {met[kind]}" for kind in rare))


def _figures(tally: Tally) -> str:
    parked = ", ".join(f"{code} {count}" for code, count in tally.parked.most_common())
    return (
        f"{tally.histories} histories of {tally.steps} statements, {tally.tables} tables with {tally.rows} rows"
        f" compared, parked: {parked or 'none'}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description="Play random histories.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first history")
    parser.add_argument("--world", nargs="*", default=list(WORLDS), help="such as ducklake-16-notrigger-resync")
    parser.add_argument("--size", type=int, default=12, help="the histories of a batch")
    parser.add_argument("--stay", type=int, default=4, help="the batches of one engine")
    parser.add_argument(
        "--first", nargs="?", const="", metavar="SIGN", help="end with the first finding, whose sign has this text"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
