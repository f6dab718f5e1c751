"""A table that fits its terminal: where that is too narrow for all columns, the least important ones are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP: Final = 2
_NAME: Final = 18
"""The width of the first column below which other columns are left out. Longer names are folded."""


class FittedTable:
    """Rows of cells below headings. The first column is folded, and the others are never cut.

    ``optional`` names the columns that may be left out, the least important first. Empty ones go before them, and
    already where a name would be folded.
    """

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[Text]], optional: Sequence[str]) -> None:
        self._headings, self._rows, self._optional = headings, rows, optional

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with the columns that fit."""
        widths = {
            heading: max(cell_len(heading), *(cell_len(row[number].plain) for row in self._rows))
            for number, heading in enumerate(self._headings)
        }
        first = self._headings[0]
        shown = list(self._headings)
        for heading in sorted(self._optional, key=self._has_value):
            if self._has_value(heading):
                widths[first] = min(widths[first], _NAME)
            if sum(widths[each] + _GAP for each in shown) <= options.max_width:
                break
            shown.remove(heading)
        numbers = [self._headings.index(heading) for heading in shown]
        grid = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
        for heading in shown:
            if heading == first:
                grid.add_column(heading, overflow="fold")
            else:
                grid.add_column(heading, no_wrap=True, justify="left" if heading == "PHASE" else "right")
        for row in self._rows:
            grid.add_row(*(row[number] for number in numbers))
        yield grid

    def _has_value(self, heading: str) -> bool:
        number = self._headings.index(heading)
        return any(row[number].plain for row in self._rows)
