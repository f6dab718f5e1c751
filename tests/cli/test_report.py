"""What `levada run` shows while it runs."""

from __future__ import annotations

import io

from rich.console import Console
from tests.runtime import samples

from levada.cli.report import LineReport, LiveReport, report


def test_lines_where_there_is_no_terminal() -> None:
    """One line for each thing that changed, and none for the same again; what is in a name is not markup."""
    out = io.StringIO()
    console = Console(file=out, width=200)
    copying = samples.progress(samples.table("[x]", phase="DataSync", copy=samples.copying()))
    with report(console) as shown:
        assert isinstance(shown, LineReport)
        shown.show(copying)
        shown.show(copying)
        shown.show(samples.progress(samples.table("[x]")))
    lines = [line.partition(" ")[2] for line in out.getvalue().splitlines()]
    assert lines == ["shop: Running", "public.[x]: DataSync", "public.[x]: Ready"]


def test_a_table_where_there_is_one() -> None:
    """It is drawn in place, and its last state stays."""
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with report(console) as shown:
        assert isinstance(shown, LiveReport)
        shown.show(samples.progress(samples.table(rows_applied=5)))
        shown.show(samples.progress(samples.table(rows_applied=77), at=samples.seconds(1)))
    assert "public.orders" in out.getvalue()
    assert "72/s" in out.getvalue()
