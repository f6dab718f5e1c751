"""Names that other people chose, in logs and on terminals."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console
from tests.runtime import samples

from levada.cli.output import show_problem
from levada.cli.render import dashboard, summary
from levada.cli.report import LineReport
from levada.logs import LineFormatter
from levada.printable import counted, listed, one_record, printable, unreadable_reason

EVIL = "t\x1b[2J\n2026-01-01T00:00:00.000Z INFO levada: all is well\r\x9b\u202e"


def test_control_characters_are_escaped() -> None:
    """Control characters that a terminal would obey are escape sequences. Other text stays as it is."""
    assert printable("a\x1b[31mb\tc\x07\u2028") == "a\\x1b[31mb\\tc\\x07\\u2028"
    assert printable("Grüße, 表\nnext") == "Grüße, 表\nnext"
    assert one_record("a\n  hint: b\nforged") == "a\n  hint: b\\nforged"


def test_a_name_is_no_log_record() -> None:
    """A record with a name that holds a line feed is one line, and one in a traceback is indented."""
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        record = logging.LogRecord("levada", logging.INFO, "", 0, "table %s", (EVIL,), (ValueError, error, None))
    first, *others = LineFormatter().format(record).split("\n")
    assert "all is well" in first
    assert "\x1b" not in first
    assert others
    assert all(line.startswith("  ") for line in others)


def test_a_name_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the lines of a run, nor an error, hand a control character to the terminal."""
    out = io.StringIO()
    shown = samples.progress(samples.table(EVIL))
    LineReport(Console(file=out, force_terminal=False)).show(shown)
    assert "\\x1b[2J\\n2026" in out.getvalue()
    assert not {"\x1b", "\x9b", "\u202e"} & set(out.getvalue())
    show_problem("error", "x", EVIL, EVIL)
    assert not {"\x1b", "\x9b", "\u202e"} & set(capsys.readouterr().err)


def test_a_name_does_not_move_the_cursor_in_the_dashboard() -> None:
    """Whatever an engine reports, the table of `levada status` hands no control character to the terminal."""
    table = samples.table(EVIL, phase=EVIL, note=EVIL, destination_table=EVIL, error=samples.error(reason=EVIL))
    shown = samples.progress(table, pipeline=EVIL, state=EVIL, slot=samples.slot(name=EVIL, wal_status=EVIL))
    console = Console(file=(out := io.StringIO()), width=2000, force_terminal=False)
    console.print(dashboard(shown))
    assert out.getvalue().count("\\x1b[2J\\n2026") >= 6
    assert not {"\x1b", "\x9b", "\u202e"} & set(out.getvalue())
    assert not {"\x1b", "\x9b", "\u202e", "\n"} & set(summary(shown))


def test_a_number_has_its_noun() -> None:
    """One is singular, and everything else plural. Digits have groups."""
    assert [counted(n, "row") for n in (0, 1, 2, 20_000)] == ["0 rows", "1 row", "2 rows", "20,000 rows"]


def test_an_unreadable_file_has_its_reason_in_words(tmp_path: Path) -> None:
    """A user reads why a file cannot be read, and not the name of Python's exception."""
    (tmp_path / "latin").write_bytes(b"\xff")
    reasons = {}
    for name in ("gone", "latin"):
        with pytest.raises((OSError, UnicodeDecodeError)) as raised:
            (tmp_path / name).read_text("utf-8")
        reasons[name] = unreadable_reason(raised.value)
    assert reasons == {"gone": "No such file or directory", "latin": "it is not UTF-8 text"}


def test_long_lists_end_with_a_number() -> None:
    """Ten items are listed, and the others counted."""
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert listed(range(1_212)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1,202 more"
