"""Rules of the cuts of all tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from levada.errors import NeedsOperator
from levada.status import CutPhase
from levada.stores.phases import Errored, Ready
from levada.values import age_of

if TYPE_CHECKING:
    from levada.destinations import Destination
    from levada.runtime.config import PipelineConfig
    from levada.runtime.tables.record import TableRecord
    from levada.stores.interface import Cut

_OTHER_DESTINATION: Final = "use a destination that has cuts: docs/cuts.md names them"
_SCHEDULED: Final = "levada_cut_"
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}", re.ASCII)


def check_cut_name(name: object) -> None:
    """Raise NeedsOperator ``cut_name_invalid`` for a name that a user cannot give to a cut.

    Spark takes a name that is a number for the ID of a snapshot. ``main`` is Iceberg's name of the current branch, and
    Levada's own tags begin with ``levada``.
    """
    lower = name.lower() if isinstance(name, str) else ""
    if not isinstance(name, str) or lower == "main" or lower.startswith("levada") or not _NAME.fullmatch(name):
        raise NeedsOperator(
            "cut_name_invalid",
            f"not a name for a cut: {name!r}",
            hint="choose a name of at most 63 letters, digits, dots, hyphens and underscores that begins with a letter,"
            " but not with levada, and is not main",
        )


def check_cuts(config: PipelineConfig, destination: Destination) -> None:
    """Raise NeedsOperator ``cuts_unsupported`` if cuts are scheduled and the destination cannot keep them."""
    if config.cuts is not None:
        require_cuts(destination, f"remove spec.cuts from the manifest, or {_OTHER_DESTINATION}")


def require_cuts(destination: Destination, hint: str = _OTHER_DESTINATION) -> None:
    """Raise NeedsOperator ``cuts_unsupported`` if the destination cannot keep states of tables."""
    if not destination.capabilities.cuts:
        raise NeedsOperator(
            "cuts_unsupported",
            f"the destination {destination.name} keeps no former states of its tables, so there are no cuts",
            hint=hint,
        )


def scheduled_name(at: datetime) -> str:
    """Return the name of a scheduled cut that is chosen at this time."""
    return f"{_SCHEDULED}{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def strays(found: Iterable[str], known: Container[str], since: datetime) -> set[str]:
    """Return the names of unknown scheduled cuts from before ``since``, as after a restore of the store.

    Later ones may be those of a newer process.
    """
    return {n for n in found if n.startswith(_SCHEDULED) and n < scheduled_name(since) and n not in known}


def reason_left_out(record: TableRecord) -> str:
    """Return why the table cannot be part of a cut now, empty if it can."""
    if record.suspended:
        return "suspended"
    if isinstance(record.phase, Errored):
        return f"errored [{record.phase.code}]"
    if not isinstance(record.phase, Ready):
        return f"not copied yet, in phase {record.phase.name}"
    return ""


def outdated(cuts: Iterable[Cut], keep: int, now: datetime) -> list[str]:
    """Return the names of the scheduled cuts to drop, before a new cut is made.

    The newest ``keep`` complete ones are kept, and as many incomplete ones. They are ordered by time, because a source
    that was replaced may have lower LSNs than before. One of the future was made by a clock that was ahead, and would
    keep its place for as long. It counts from its last transaction, or as the oldest.
    """
    found: list[str] = []
    scheduled = sorted((c for c in cuts if c.scheduled), key=lambda c: (_made_at(c, now), c.lsn), reverse=True)
    for phase in (CutPhase.COMPLETE, CutPhase.INCOMPLETE):
        found += [c.name for c in scheduled if c.phase is phase][keep:]
    return found


def _made_at(cut: Cut, now: datetime) -> datetime:
    committed = _EARLIEST if cut.committed_at is None else min(cut.committed_at, now)
    return cut.at if age_of(cut.at, now) < timedelta.max else committed
