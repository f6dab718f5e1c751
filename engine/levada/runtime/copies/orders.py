"""The protocol between the driver and the process of a dedicated copy: an order in the store and its answer. Pure.

Only the driver changes phases and decides how the table is copied. It puts an order with its plan into the store and
waits. The process takes the order, carries the plan out with the driver's epoch, and writes answers. Each answer
replaces the last one by compare-and-swap, so the process notices an order that was withdrawn, repeated or taken by
another process. Once another driver owns the pipeline, the store and the destination reject writes of both.
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
    read from.
    """

    beat: int = 0
    progress: CopyProgress | None = None
    lsn: Lsn | None = None
    storage: TableStorage | None = None
    error: LevadaError | None = None

    def to_text(self) -> str:
        """Return the answer as JSON for the store."""
        data: dict[str, Any] = {"beat": self.beat}
        if self.progress is not None:
            data["progress"] = asdict(self.progress)
        if self.lsn is not None:
            data["lsn"] = str(self.lsn)
        if self.storage is not None:
            data["storage"] = self.storage.to_text()
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
    )


def plan_to_text(plan: Recreate | ReplaceInPlace) -> str:
    """Return the plan as JSON for the store."""
    return json.dumps(
        {
            _REPLACES: isinstance(plan, ReplaceInPlace),
            "settings": plan.settings.to_text(),
            "former": None if plan.former is None else plan.former.to_text(),
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
