"""`levada check`: reports everything that would keep a pipeline from running, each with a solution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from levada.cli.downloads import prepare
from levada.cli.output import Output, console, show_problem, working, write_json
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import CoverageReport
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.plugins import destination_settings
from levada.runtime.host.readiness import publication_coverage, start_problems
from levada.spec import Manifests

_MOST: Final = 10
"""The number of problems of one code that are printed."""


def check(manifests: Manifests, secrets: Path | None, work_dir: Path, output: Output) -> tuple[Problem, ...]:
    """Print and return the problems."""
    destination_settings(manifests)
    prepare(manifests)
    with working("checking the source and the destination"):
        problems = start_problems(manifests, secrets=secrets, work_dir=work_dir)
    found = None if refused(problems) else publication_coverage(manifests, secrets=secrets)
    if output is Output.JSON:
        write_json(
            {
                "ok": not refused(problems),
                "problems": problems_json(problems),
                "coverage": None if found is None else coverage_json(found),
            }
        )
    else:
        show_problems(problems)
        if found is not None:
            show_coverage(found, pipeline_config(manifests, secrets=secrets, work_dir=work_dir))
    return problems


def refused(problems: Iterable[Problem]) -> bool:
    """Return True if any of the problems is an error, not only a warning."""
    return any(p.severity is Severity.ERROR for p in problems)


def show_problems(problems: Iterable[Problem]) -> None:
    """Print the problems, errors last, where they stay visible."""
    for problem in grouped(sorted(problems, key=lambda p: p.severity is Severity.ERROR)):
        show_problem(problem.severity.value.lower(), problem.code, problem.message, problem.hint)


def grouped(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield problems that have the same hint as one, and at most ten of each code. The others are counted. Pure.

    A role without rights has a problem with each of a thousand tables. The source and the store report the same one if
    they are the same database.
    """
    by_hint: dict[tuple[Severity, str, str], list[str]] = {}
    for problem in dict.fromkeys(problems):
        by_hint.setdefault((problem.severity, problem.code, problem.hint), []).append(problem.message)
    of_code: dict[tuple[Severity, str], list[tuple[str, list[str]]]] = {}
    for (severity, code, hint), messages in by_hint.items():
        of_code.setdefault((severity, code), []).append((hint, messages))
    for (severity, code), groups in of_code.items():
        for hint, messages in groups[:_MOST]:
            more = [f"and {len(messages) - _MOST:,} more"] if len(messages) > _MOST else []
            yield Problem(severity, code, "\n  ".join([*messages[:_MOST], *more]), hint)
        if rest := sum(len(messages) for _, messages in groups[_MOST:]):
            yield Problem(severity, code, f"and {rest:,} more", "levada check MANIFEST -o json lists all of them")


def problems_json(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return the problems as plain values for JSON."""
    return [{"severity": p.severity.value, "code": p.code, "message": p.message, "hint": p.hint} for p in problems]


def coverage_json(report: CoverageReport) -> dict[str, Any]:
    """Return the report as plain values for JSON."""
    return {
        "satisfied": report.satisfied,
        "present": [str(table) for table in report.present],
        "missing": [str(table) for table in report.missing],
        "manageable": report.manageable,
        "blockers": list(report.blockers),
        "remediation": list(report.remediation),
        "notes": list(report.notes),
    }


def show_coverage(report: CoverageReport, config: PipelineConfig) -> None:
    """Print the tables that will be replicated, and the publication's limitations."""
    out, publication = console(), config.publication
    count = len(report.present) + len(report.missing)
    out.print(f"{config.source.where}: ready, {counted(count, 'table')} selected", markup=False)
    for table in sorted((*report.present, *report.missing)):
        out.print(f"  {table}", markup=False)
    if report.missing and publication.managed:
        out.print(f"publication {publication.name} will be created or extended to publish them", markup=False)
    for note in report.notes:
        out.print(f"note: {note}", markup=False)
