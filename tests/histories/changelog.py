"""The last state of a table, folded from its changelog by a reader of its own."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_OP: Final = "_levada_op"
_UNCHANGED: Final = "_levada_unchanged"
_ORDER: Final = ("_levada_commit_lsn", "_levada_ordinal")


def folded(changes: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the rows that remain. Without a key a delete removes one row of its values."""
    names = [n for n in changes.column_names if not n.startswith("_levada_")]
    rows = sorted(changes.to_pylist(), key=lambda r: (*(r[n] or 0 for n in _ORDER), r[_OP] != "D"))
    known = set(key) <= set(names) and bool(key)
    state: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        if row[_OP] == "T":
            state.clear()
            continue
        place = repr([row[n] for n in (key if known else names)])
        held = state.setdefault(place, [])
        before = held[-1] if held else {}
        if row[_OP] == "D":
            if not held:
                raise ValueError(f"a delete of a row that is not there: {place}")
            held.pop()
            continue
        kept = {n: before.get(n) for n in row.get(_UNCHANGED) or ()}
        if known:
            held.clear()
        held.append({n: row[n] for n in names} | kept)
    remaining = [row for rows in state.values() for row in rows]
    return pa.Table.from_pylist(remaining, pa.schema([changes.schema.field(n) for n in names]))
