"""Nulls in a file that ``kubectl apply`` leaves out of the object, where the word "Null" was meant.

YAML reads Null without quotes as null. The API server refuses that, but ``kubectl apply`` does not send it, so that the
default would be taken, and a column without its mask. Its annotation has the file as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from levada_operator.observe.mappings import mapping_in

_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CHOICE: Final = "onUnrepresentable"
_DEFAULT: Final = "Error"


def spec_as_written(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of a Pipeline or TableSync, with those nulls that are not replaced since."""
    spec: Mapping[str, Any] = body.get("spec") or {}
    text = (body["metadata"].get("annotations") or {}).get(_APPLIED, "")
    if ":null" not in text:
        return spec
    try:
        written = mapping_in(json.loads(text), "spec")
    except (ValueError, RecursionError):
        # Anybody can write it.
        return spec
    if _CHOICE in written and written[_CHOICE] is None and spec.get(_CHOICE) == _DEFAULT:
        return {**spec, _CHOICE: None}
    masks = mapping_in(spec, "columns", "mask")
    left_out: dict[str, Any] = {
        column: None
        for column, mask in mapping_in(written, "columns", "mask").items()
        if mask is None and column not in masks
    }
    if not left_out:
        return spec
    return {**spec, "columns": {**mapping_in(spec, "columns"), "mask": {**masks, **left_out}}}
