"""The output of `levada run` while it runs."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from tests.rigs.waiting import LIMIT_S
from tests.runtime import samples

from levada.cli.render import dashboard
from levada.cli.report import LineReport, LiveReport, fitting_dashboard, report
from levada.values import TableId

ROOT = Path(__file__).parents[2]


def test_lines_where_there_is_no_terminal() -> None:
    """Each change is one line, and an unchanged document none. Names are not markup."""
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


def test_phases_are_in_the_table_alone(caplog: pytest.LogCaptureFixture) -> None:
    """While the table is there, no line above it repeats a phase. Errors of tables are lines too."""
    phases = logging.getLogger("levada.runtime.tables.phase_changes")
    with caplog.at_level(logging.INFO, "levada"):
        with LiveReport(Console(file=io.StringIO(), force_terminal=True)):
            phases.info("Init -> DataSync")
            phases.error("parked")
        phases.info("SyncDone -> Ready")
    assert caplog.messages == ["parked", "SyncDone -> Ready"]


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


def test_a_screen_is_full_of_tables_whose_names_are_folded() -> None:
    """As many tables are listed as fit, whatever number of lines each takes."""
    listed = [samples.table(f"{'x' * 90}{i:03}", id=TableId(100 + i)) for i in range(100)]
    console = Console(file=io.StringIO(), width=80, height=24)
    with console.capture() as shown:
        console.print(fitting_dashboard(samples.progress(*listed), None, console))
    lines = shown.get().splitlines()
    assert 24 - 2 < len(lines) <= 24
    assert sum("Ready" in line for line in lines[2:-1]) > 3


def test_empty_columns_make_room_for_names() -> None:
    """At 80 columns a name of 27 characters is on one line, where no table has a rate, changes or a time left."""
    listed = [samples.table(f"orders_of_region_{i:03}", id=TableId(100 + i), rows_applied=0) for i in range(100)]
    console = Console(file=io.StringIO(), width=80, height=24)
    with console.capture() as shown:
        console.print(fitting_dashboard(samples.progress(*listed), None, console))
    lines = shown.get().splitlines()
    assert len([line for line in lines if line.startswith("public.orders_of_region_")]) == 19
    assert len(lines) == 24


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_terminal_is_filled(width: int, height: int) -> None:
    """On a real terminal the table has the whole width and height, and no line is wrapped."""
    screen = printed(width, height, {"TERM": "xterm-256color"})
    last = screen.split("\x1b[2K")[-1]
    assert "\x1b[" in screen
    lines = [re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in last.splitlines()]
    rows = [line for line in lines if line.startswith("public.orders_of_region_")]
    assert len(rows) == height - 5, (
        "the others are the headline, the slot, the headings, the count of the others, and memory"
    )
    assert max(map(len, lines)) <= width
    [heading] = {line for line in lines if line.startswith("TABLE")}
    assert heading.split()[:2] == ["TABLE", "PHASE"]
    assert ("CHANGES" in heading) == (width == 200)


@pytest.mark.usefixtures("own_process")
def test_a_dumb_terminal_gets_lines() -> None:
    """It cannot redraw a table. So each change is a line, without an escape sequence."""
    screen = printed(80, 24, {"TERM": "dumb"})
    assert "\x1b" not in screen
    assert "shop: Running" in screen
    assert "public.orders_of_region_099: Ready" in screen


@pytest.mark.usefixtures("own_process")
def test_no_colours_where_none_are_wanted() -> None:
    """NO_COLOR leaves out colours. The table is drawn as ever."""
    coloured, plain = (printed(80, 24, {"TERM": "xterm-256color"} | more) for more in ({}, {"NO_COLOR": "1"}))
    assert "\x1b[32mReady" in coloured
    assert not re.search("\x1b\\[3[0-9]m", plain)
    assert "Ready" in plain


SHOW = """
from tests.runtime import samples
from tests.rigs.waiting import LIMIT_S
from tests.rigs.waiting import LIMIT_S
from levada.cli.output import console
from levada.cli.report import report
from levada.values import TableId
listed = [samples.table(f"orders_of_region_{i:03}", id=TableId(100 + i), rows_applied=0) for i in range(100)]
with report(console()) as shown:
    shown.show(samples.progress(*listed))
"""


def printed(width: int, height: int, environment: dict[str, str]) -> str:
    """Return all that a process prints that shows 100 tables on a pseudo-terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW], stdin=theirs, stdout=theirs, stderr=theirs, env=kept | environment, cwd=ROOT
    )
    os.close(theirs)
    read = bytearray()
    with suppress(OSError):  # Linux reports the end of a pseudo-terminal as an error.
        while part := os.read(ours, 65536):
            read += part
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, read.decode()
    return read.decode()


def test_names_are_whole_at_80_columns() -> None:
    """A name that is too long for its column continues on the next line, and no figure is cut."""
    copying = samples.copying(rows=123_456_789)
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(dashboard(samples.progress(samples.table("x" * 63, phase="DataSync", copy=copying))))
    assert shown.get().count("x") == 63
    assert "123,456,789" in shown.get()
    assert max(map(len, shown.get().splitlines())) <= 80
