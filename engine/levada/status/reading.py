"""Reading of documents that another process wrote, perhaps one of another version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from levada.errors import NeedsOperator
from levada.status.document import Part
from levada.status.progress import PROGRESS_VERSION, Progress, SlotProgress

P = TypeVar("P", bound=Part)


def read_progress(document: object) -> Progress:
    """Parse a document of ``/v1/progress``.

    Raise NeedsOperator ``progress_version`` for a version that this program does not know, and
    ``progress_unreadable`` for anything else that is no such document.
    """
    version = document.get("version") if isinstance(document, Mapping) else None
    if version not in (None, PROGRESS_VERSION):
        raise NeedsOperator(
            "progress_version",
            f"the engine reports its progress in version {repr(version)[:40]}, and this program reads version"
            f" {PROGRESS_VERSION} only",
            hint="use the same version of Levada for both",
        )
    return _read(Progress, document)


def read_slot(document: object) -> SlotProgress:
    """Parse a sample of the slot, as ``levada lag -o json`` prints it. Raise NeedsOperator ``progress_unreadable``."""
    return _read(SlotProgress, document)


def _read(kind: type[P], document: object) -> P:
    try:
        return kind.from_json(document)
    except ValidationError as error:
        # The values are left out, because an arbitrary server may have answered.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise NeedsOperator("progress_unreadable", f"not a progress document: {where}: {first['msg']}") from None
