"""Log lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from levada.logs import add_fields, configure
from levada.values import Lsn, QualifiedTable


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as it was."""
    root, ours = logging.getLogger(), [logging.getLogger(name) for name in ("levada", "levada_operator")]
    before = root.handlers[:], root.level, [logger.level for logger in ours]
    yield
    root.handlers[:], root.level, levels = before
    for logger, level in zip(ours, levels, strict=True):
        logger.setLevel(level)


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """A line on standard error has the UTC to the millisecond, level, logger and message. Details need a request."""
    configure()
    logging.getLogger("levada.capture").info("slot %s", "s")
    logging.getLogger("levada.capture").debug("not shown")
    logging.getLogger("somebody").info("not shown")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO levada\.capture: slot s\n", err)


def test_lines_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, a traceback inside it, and what was given as extra."""
    configure(as_json=True)
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("levada").exception("failed", extra={"table": "public.orders"})
    [line] = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"], record["table"]) == ("ERROR", "failed", "public.orders")
    assert "ValueError: x" in record["traceback"]


def test_fields_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """The table and the LSN that a message names, and the process's pipeline and epoch. An ``extra`` comes first."""
    configure(as_json=True)
    add_fields(pipeline="shop", epoch=3)
    log = logging.getLogger("levada")
    log.info("%s is at %s after %s", QualifiedTable("public", "orders"), Lsn(255), Lsn(1))
    log.info("%(a)s", {"a": 1}, extra={"epoch": 4})
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == "public.orders is at 0/FF after 0/1"
    assert {k: first[k] for k in ("table", "lsn", "pipeline", "epoch")} == {
        "table": "public.orders", "lsn": "0/FF", "pipeline": "shop", "epoch": 3,
    }  # fmt: skip
    assert (second["epoch"], second["pipeline"], "table" in second) == (4, "shop", False)


def test_quiet_and_debug(capsys: pytest.CaptureFixture[str]) -> None:
    """Short commands log errors only. Debug mode logs everything from Levada."""
    configure(quiet=True)
    logging.getLogger("levada").warning("not shown")
    configure(quiet=True, debug=True)
    logging.getLogger("levada").debug("shown")
    assert capsys.readouterr().err.count("shown") == 1


def test_short_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time and the message, and the level if it is a warning. With ``--debug`` the logger too."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    configure()
    logging.getLogger("levada.capture").info("begins at %s", "a\nb")
    logging.getLogger("levada.capture").warning("waits")
    configure(debug=True)
    logging.getLogger("levada.capture").info("ends")
    first, second, third = terminal.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d begins at a\\nb", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING waits", second)
    assert third.endswith(" INFO levada.capture: ends")
