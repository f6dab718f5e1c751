"""Errors on standard error: always message, code and hint, never more."""

from __future__ import annotations

import pytest

from levada.cli.output import show_error
from levada.errors import NeedsOperator

ERROR = NeedsOperator("slot_lost", "slot levada_[shop] is gone", hint="levada resync MANIFEST --all")


def test_plain_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Message and code on one line, the hint below; brackets are not markup."""
    show_error(ERROR, debug=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: slot levada_[shop] is gone [slot_lost]\n  hint: levada resync MANIFEST --all\n"


def test_unexpected_errors_keep_their_text_to_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else's error may hold a connection string with a password."""
    show_error(ValueError("password=hunter2"), debug=False)
    err = capsys.readouterr().err
    assert "hunter2" not in err
    assert "unexpected ValueError [internal_error]" in err
    assert "LEVADA_DEBUG=1 levada" in err


def test_traceback_for_who_asks(capsys: pytest.CaptureFixture[str]) -> None:
    """With --debug it is all there."""
    try:
        raise ERROR
    except NeedsOperator as error:
        show_error(error, debug=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error: slot levada_[shop] is gone [slot_lost]" in err
