"""The history of a pipeline's figures: the JSON of ``/v1/history``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from levada.status.document import Part, Tenths, Thousandths, Time

HISTORY_VERSION: Final = 1
"""The version of the document's form. New fields do not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Part):
    """Figures of the last two days, in columns of the same length.

    A value describes the seconds that follow its time. Values are null while they are not known. Times without a
    pipeline are left out. The history begins with the process.
    """

    version: int = HISTORY_VERSION
    at: tuple[Time, ...] = ()
    """The times, ascending."""
    seconds: tuple[int, ...] = ()
    """The length of time that the values describe: 10 in the last hour, 60 in the five hours before, then 600."""
    lag_bytes: tuple[int | None, ...] = ()
    """The largest WAL that the slot had not confirmed."""
    retained_bytes: tuple[int | None, ...] = ()
    """The largest WAL that the slot kept on the source's disk."""
    staged_bytes: tuple[int | None, ...] = ()
    """The largest size of the staging area."""
    lag_seconds: tuple[Thousandths | None, ...] = ()
    """The largest lag of any table that is not copied or parked."""
    rows_per_second: tuple[Tenths | None, ...] = ()
    """The row changes that arrived, on average."""
