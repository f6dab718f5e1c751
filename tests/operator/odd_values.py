"""Odd values for every field of a Pipeline and of a TableSync, also such as no schema admits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from tests.cluster.fields import PATCHES
from tests.operator.samples import pipeline, table_sync

from levada.spec import TableSyncManifest, structural


def _deep(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels):
        body = {"a": body}
    return body


ODD: Final[tuple[Any, ...]] = (
    "", "x" * 100_000, "\x00\u202e\né", "../../../etc/passwd", "-" * 64, "a" * 64, "$(id)", -1, 0, 2**63, 10**400, 1.5,
    float("inf"), True, [], [None], ["x"] * 10_000, [{}], [[]], {}, {"": ""}, {"x" * 10_000: "y"},
    {"name": "../x", "key": "../y"}, _deep(90), None,
)  # fmt: skip


def paths(kind: str) -> list[tuple[str, ...]]:
    """Return the path of each field below ``spec``, sections included."""
    if kind == "TableSync":
        return [*_below(structural(TableSyncManifest)["properties"]["spec"])]
    full = [tuple(name.split(".")) for name in PATCHES]
    return [*dict.fromkeys(path[:length] for path in full for length in range(1, len(path) + 1))]


def with_odd_value(kind: str, path: tuple[str, ...], value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Pipeline and a TableSync of it, one of which has the value."""
    bodies = {"Pipeline": pipeline(), "TableSync": table_sync(ours=False)}
    at = bodies[kind]["spec"]
    if path[0] == "destination" and path[1:2] != ("iceberg",):
        at["destination"] = {}
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = deepcopy(value)
    return bodies["Pipeline"], bodies["TableSync"]


def _below(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, each in (schema.get("properties") or {}).items():
        yield (*path, name)
        yield from _below(each, (*path, name))
