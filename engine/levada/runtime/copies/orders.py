"""What the driver and a dedicated copy's process say to each other, in a table's order. Pure.

The driver alone changes phases. It leaves an order in the store, and waits; the process takes the order, copies under
the driver's epoch, and answers. Neither can speak out of turn: the process's every word replaces its last one in one
step, so that an order that was taken back, or ordered anew, or taken by another process is noticed; and once another
driver owns the pipeline, the store and the destination refuse both.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from levada.copy.progress import CopyProgress
from levada.errors import LevadaError, rebuild
from levada.schema.storage import TableStorage
from levada.stores.interface import CopyOrder
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class Answer:
    """How far the copy is (``beat`` counts up while its process lives), where it ended, or what ended it.

    ``storage`` is what a copy that ended was read from.
    """

    beat: int = 0
    progress: CopyProgress | None = None
    lsn: Lsn | None = None
    storage: TableStorage | None = None
    error: LevadaError | None = None

    def to_text(self) -> str:
        """Return it for the store."""
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
    """Return what the process has said last."""
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
