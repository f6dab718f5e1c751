"""What `levada run` shows while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.runtime import samples

from levada.cli.render import dashboard
from levada.cli.report import LineReport, LiveReport, fitting_dashboard, report
from levada.values import TableId


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


@pytest.mark.parametrize("tables", [1, 20, 24, 25, 300])
def test_errors_stay_on_a_small_screen(tables: int) -> None:
    """Tables that do not fit are counted. The parked one stays listed, and its hint below the tables is visible."""
    listed = [samples.table(f"t{i:03}", id=TableId(100 + i), lag_seconds=float(i)) for i in range(tables)]
    listed[0] = samples.table("parked", phase="Errored", error=samples.error())
    console = Console(file=io.StringIO(), width=80, height=24)
    with console.capture() as shown:
        console.print(fitting_dashboard(samples.progress(*listed), None, console))
    text = shown.get()
    assert len(text.splitlines()) <= 24
    assert "public.parked  Errored" in text
    assert "hint: ALTER TABLE" in text
    rows = text.count("public.t")
    assert (f"and {tables - 1 - rows} more tables: {tables - 1 - rows} Ready" in text) == (rows < tables - 1)
    assert tables < 25 or f"public.t{tables - 1:03}" in text, "the table that trails most"


def test_names_are_whole_at_80_columns() -> None:
    """A name that is too long for its column continues on the next line, and no figure is cut."""
    copying = samples.copying(rows=123_456_789)
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(dashboard(samples.progress(samples.table("x" * 63, phase="DataSync", copy=copying))))
    assert shown.get().count("x") == 63
    assert "123,456,789" in shown.get()
    assert max(map(len, shown.get().splitlines())) <= 80
