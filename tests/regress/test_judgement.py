"""The judgement of a run of the suite, on runs and tables made by hand."""

from __future__ import annotations

from typing import Any

from tests.regress.judgement import changed_results, wrong_tables
from tests.regress.suite import SuiteRun, only_members


def run(*failed: str, tests: str = "boolean publication triggers") -> SuiteRun:
    """Return a run of these tests."""
    return SuiteRun(frozenset(tests.split()), frozenset(failed), 1.0, "")


def table(name: str, phase: str = "Ready", code: str | None = None) -> dict[str, Any]:
    """Return a table of the progress."""
    return {"schema": "public", "name": name, "phase": phase, "error": code and {"code": code}}


def test_a_changed_result_is_found() -> None:
    """A test that fails in both runs, and one that lists all objects, count as unchanged. A missing test does not."""
    assert not list(changed_results(run("boolean"), run("boolean", "publication")))
    assert list(changed_results(run(), run("triggers"))) == ["test triggers fails only with Levada"]
    assert list(changed_results(run("triggers"), run())) == ["test triggers fails only without Levada"]
    assert list(changed_results(run(), run(tests="boolean publication"))) == ["test triggers ran only without Levada"]


def test_a_listed_membership_is_no_changed_result() -> None:
    """A test whose output differs in the publication that psql shows of a table passes. One with more fails."""
    shown = '+Publications:\n+    "levada_regression"\n'
    one, more = (f"diff -U3 e r\n--- /e/{n}.out\n+++ /a/results/{n}.out\n@@ -1 +1,3 @@\n x\n" for n in ("one", "more"))
    assert only_members(one + shown + more + shown + "-(3 rows)\n") == {"one"}


def test_a_wrong_table_is_found() -> None:
    """A table that is Ready must be equal, or have a known reason not to be compared. A parked one needs one too."""
    tables = [
        table("equal"),
        table("other"),
        table("changelog"),
        table("parked", "Errored", "slot_lost"),
        table("none"),
    ]
    reports = {
        "public.equal": {"equal": True},
        "public.other": {"equal": False},
        "public.changelog": {"error": {"code": "verify_unsupported"}},
    }
    found = list(wrong_tables(tables, reports))
    assert [line.split()[1] for line in found] == ["public.other", "public.parked", "public.none"]
