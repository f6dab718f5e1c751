"""The protocol between the driver and the process of a dedicated copy: an order in the store and its answer. Pure.

Only the driver changes phases and decides how the table is copied. It puts an order with its plan into the store and
waits. The process takes the order, carries the plan out with the driver's epoch, and writes answers. Each answer
replaces the last one by compare-and-swap, so the process notices an order that was withdrawn, repeated or taken by
another process. Once another driver owns the pipeline, the store and the destination reject writes of both.

The answers also have the record of the finished ranges, see `levada.copy.kept`. The driver stores it, so that the next
order continues the copy. A copy whose ranges were read in several snapshots is committed by the driver, because only
the driver has the staged changes that complete it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from levada.errors import LevadaError, rebuild
from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace
from levada.runtime.tables.requests import CopySettings
from levada.schema.storage import TableStorage
from levada.status import CopyProgress
from levada.stores.interface import CopyOrder
from levada.values import Lsn

_REPLACES: Final = "replaces"


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a dedicated copy: its progress, the LSN of a finished copy, or the error of a failed one.

    ``beat`` increases every few seconds while the process is alive. ``storage`` is the storage that a finished copy was
    read from. ``kept`` is the text of the record of the finished ranges. It is empty if there is none, and None before
    the process has read the order's. ``ranges_finished`` is True if only the changes are left, which the driver adds.
    """

    beat: int = 0
    progress: CopyProgress | None = None
    lsn: Lsn | None = None
    storage: TableStorage | None = None
    error: LevadaError | None = None
    kept: str | None = None
    ranges_finished: bool = False

    @property
    def final(self) -> bool:
        """True if the process has ended its work."""
        return self.lsn is not None or self.error is not None or self.ranges_finished

    def to_text(self) -> str:
        """Return the answer as JSON for the store."""
        data: dict[str, Any] = {"beat": self.beat}
        if self.progress is not None:
            data["progress"] = asdict(self.progress)
        if self.lsn is not None:
            data["lsn"] = str(self.lsn)
        if self.storage is not None:
            data["storage"] = self.storage.to_text()
        if self.kept is not None:
            data["kept"] = self.kept
        if self.ranges_finished:
            data["rangesFinished"] = True
        if (error := self.error) is not None:
            data["error"] = {
                "class_name": type(error).__name__,
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
            }
        return json.dumps(data)


def read_answer(order: CopyOrder) -> Answer:
    """Return the newest answer of the process, an empty one if no process has taken the order."""
    if not order.answer:
        return Answer()
    data = json.loads(order.answer)
    error = data.get("error")
    return Answer(
        beat=data["beat"],
        progress=CopyProgress(**data["progress"]) if "progress" in data else None,
        lsn=Lsn.parse(data["lsn"]) if "lsn" in data else None,
        storage=TableStorage.from_text(data["storage"]) if "storage" in data else None,
        error=None if error is None else rebuild(**error),
        kept=data.get("kept"),
        ranges_finished=data.get("rangesFinished", False),
    )


@dataclass(frozen=True, slots=True)
class OrderedRanges:
    """The part of an order by which an interrupted copy is continued.

    ``since`` is the LSN from which on the driver keeps the table's segments, None if the copy cannot be resumed.
    ``kept`` is the text of the record of the finished ranges, empty without one.
    """

    since: Lsn | None = None
    kept: str = ""


NO_RANGES: Final = OrderedRanges()


def plan_to_text(plan: Recreate | ReplaceInPlace, ranges: OrderedRanges = NO_RANGES) -> str:
    """Return the plan as JSON for the store."""
    return json.dumps(
        {
            _REPLACES: isinstance(plan, ReplaceInPlace),
            "settings": plan.settings.to_text(),
            "former": None if plan.former is None else plan.former.to_text(),
            "since": None if ranges.since is None else str(ranges.since),
            "kept": ranges.kept,
        }
    )


def read_plan(order: CopyOrder) -> Recreate | ReplaceInPlace:
    """Return the driver's plan."""
    data = json.loads(order.plan)
    settings = CopySettings.from_text(data["settings"])
    former = None if data["former"] is None else CopySettings.from_text(data["former"])
    if former is not None and data[_REPLACES]:
        return ReplaceInPlace(settings, former)
    return Recreate(settings, former)


def read_ranges(order: CopyOrder) -> OrderedRanges:
    """Return the finished ranges that the process records, or those that the driver ordered to continue."""
    data, recorded = json.loads(order.plan), read_answer(order).kept
    since = data.get("since")
    kept = data.get("kept", "") if recorded is None else recorded
    return OrderedRanges(None if since is None else Lsn.parse(since), kept)
