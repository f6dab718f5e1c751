"""The image and the pod template with which a driver was Ready last.

The newest ones may name an image that does not exist, or a node that does not. Jobs that must not fail with them use
these. They are in an annotation of the StatefulSet from a change until its pod is Ready.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.spec import Manifests
from levada_operator.desired.owner import Owner

_MAX_RECORD: Final = 20_000
"""Limit of the record. All annotations of an object hold 256 KiB."""
_MAX_TEXT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LastRun:
    """An image, and the user's pod template of ``driver.podTemplate``."""

    image: str
    template: Mapping[str, Any]


def last_run_record(run: LastRun) -> str:
    """Return the text of the annotation, or an empty string if it would be too large."""
    text = json.dumps({"image": run.image, "podTemplate": run.template}, sort_keys=True)
    packed = base64.b64encode(bz2.compress(text.encode())).decode()
    return packed if len(packed) <= _MAX_RECORD else ""


def read_last_run(record: str) -> LastRun | None:
    """Return what a record has, or None if there is none, or if it was changed by hand."""
    if not record or len(record) > _MAX_RECORD:
        return None
    try:
        text = bz2.BZ2Decompressor().decompress(base64.b64decode(record), _MAX_TEXT)
        read = json.loads(text)
        image, template = read["image"], read["podTemplate"]
    except (binascii.Error, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return LastRun(image, template) if isinstance(image, str) and isinstance(template, dict) else None


def as_last_run(owner: Owner, run: LastRun | None) -> Owner:
    """Return the owner with the image and the pod template that ran last, or unchanged without them."""
    if run is None:
        return owner
    pipeline = owner.manifests.pipeline
    driver = pipeline.spec.driver.model_copy(update={"image": run.image, "pod_template": dict(run.template)})
    spec = pipeline.spec.model_copy(update={"driver": driver})
    changed = Manifests(pipeline.model_copy(update={"spec": spec}), owner.manifests.table_syncs)
    return replace(owner, manifests=changed)
