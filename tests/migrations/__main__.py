"""Plays published migration histories: ``python -m tests.migrations --project wagtail --destination ducklake``."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import table
from tests.histories.world import server
from tests.migrations.play import Outcome, Play
from tests.migrations.projects import PROJECTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Play each project into each destination. Return 1 if anything was found."""
    options = _parser().parse_args(arguments)
    logging.getLogger("levada").setLevel(logging.ERROR)
    rows, findings = [], list[str]()
    chosen = [p for p in PROJECTS if p.name in options.project]
    for number, project in enumerate(chosen):
        try:
            project.install()
        except (OSError, subprocess.CalledProcessError) as error:
            # The others are played all the same.
            findings.append(f"{project.name} cannot be installed: {error}")
            continue
        with server(project.server) as running:
            for destination in options.destination:
                begun = time.monotonic()
                played = Play(project, running, destination, options.hurried, options.seed + number)
                outcome = played.play()
                title = f"{project.name} into {destination}"
                findings += [f"{title}: {text}" for text in outcome.findings]
                rows.append(_row(title, outcome, time.monotonic() - begun))
                print(f"{title}:", *outcome.causes, *outcome.skipped, *outcome.findings, sep="\n    ", flush=True)
    print(table(["history", "steps", "tables", "rows", "reads", "without rows", "copies", "findings", "s"], rows))
    print(*findings, sep="\n")
    return bool(findings)


def _row(title: str, outcome: Outcome, seconds: float) -> tuple[object, ...]:
    copies = ", ".join(f"{code} {count}" for code, count in outcome.copies.most_common()) or "none"
    figures = (outcome.steps, outcome.tables, outcome.rows, outcome.reads, len(outcome.skipped))
    return title, *figures, copies, len(outcome.findings), round(seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.migrations", description="Play published migrations.")
    names = [p.name for p in PROJECTS]
    parser.add_argument("--project", nargs="*", default=names, choices=names)
    parser.add_argument("--destination", nargs="*", default=["ducklake", "iceberg"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hurried", action="store_true", help="carry out all steps without waiting for the engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
