"""Errors on standard error: always message, code and hint, never more."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from levada.cli.check import show_problems
from levada.cli.output import console, show_error
from levada.errors import NeedsOperator
from levada.postgres.problems import Problem, Severity

ERROR = NeedsOperator("slot_lost", "slot levada_[shop] is gone", hint="levada resync MANIFEST --all")


def test_plain_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Message and code are on one line, and the hint is below. Brackets are not markup."""
    show_error(ERROR, debug=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: slot levada_[shop] is gone [slot_lost]\n  hint: levada resync MANIFEST --all\n"


def test_a_problem_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The source and a store in the same database report the same problem."""
    problem = Problem(Severity.ERROR, "source_database_missing", "there is no database x", "check spec.source.database")
    show_problems([problem, problem])
    assert capsys.readouterr().err.count("no database x") == 1


def test_a_table_in_a_pipe_has_no_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as their widest cell, but a line of a file ends with its last word."""
    table = Table("TABLE", "NOTE", box=None)
    table.add_row("public.orders", "")
    table.add_row("public.a_longer_name", "a note")
    console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert lines[2].endswith("a note")


def test_unexpected_errors_keep_their_text_to_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign error may contain a connection string with a password."""
    show_error(ValueError("password=hunter2"), debug=False)
    err = capsys.readouterr().err
    assert "hunter2" not in err
    assert "unexpected ValueError [internal_error]" in err
    assert "LEVADA_DEBUG=1 levada" in err


def test_an_unexpected_error_of_the_system_names_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A path is no secret, and without it the fault cannot be found."""
    show_error(PermissionError(13, "Permission denied", "/srv/levada"), debug=False)
    assert "unexpected PermissionError: /srv/levada: Permission denied [internal_error]" in capsys.readouterr().err


def test_traceback_for_who_asks(capsys: pytest.CaptureFixture[str]) -> None:
    """With --debug it is all there."""
    try:
        raise ERROR
    except NeedsOperator as error:
        show_error(error, debug=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error: slot levada_[shop] is gone [slot_lost]" in err


def test_the_problems_of_a_thousand_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """One hint for all that it solves, and at most ten problems of each code. The others are counted, errors last."""
    numbers = range(1000)
    blocked = [Problem(Severity.ERROR, "publication_missing", f"t{i} is another's", "CREATE …") for i in numbers]
    closed = [Problem(Severity.ERROR, "select_privilege_missing", f"no SELECT on t{i}", f"GRANT {i}") for i in numbers]
    keyless = [Problem(Severity.WARNING, "key_missing", "t0 has no key", "")]
    show_problems([*blocked, *closed, *keyless])
    shown = capsys.readouterr().err
    assert shown.startswith("warning: t0 has no key [key_missing]\n")
    assert shown.count("CREATE") == 1
    assert shown.count("t9 is another's\n  and 990 more [publication_missing]") == 1
    assert shown.count("GRANT") == 10
    assert "and 990 more [select_privilege_missing]\n  hint: levada check" in shown
    assert len(shown.splitlines()) < 40


def test_a_hint_can_be_copied_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the statement is, it is one line without a border at 80 columns."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    statement = "CREATE PUBLICATION p FOR TABLE " + ", ".join(f'"public"."t{i}"' for i in range(50))
    show_error(NeedsOperator("publication_missing", "there is no publication", hint=statement), debug=False)
    assert statement in terminal.getvalue().splitlines()
