"""Applies changes to a generation that has one document per row.

The changes are applied in pieces, in WAL order. A piece is folded into the last row of each key. All its documents get
the version of the piece. First the rows that exist at the end are written. Then the ids that do not exist at the end
are deleted. After each piece the progress is stored, so that a replay begins with the interrupted piece.

An unknown value (unchanged TOAST) is read from the document. If a row has moved to another id, the document with the
value is removed by the piece itself. So these values go to the journal before the piece is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.fold import Folded, PartialRows, fold, row_missing
from levada.destinations.keys import KeyEncoder, Keys, new_seed
from levada.destinations.opensearch.bulk import Bulk, unread
from levada.destinations.opensearch.client import Client
from levada.destinations.opensearch.exact_json import exact_dumps
from levada.destinations.opensearch.generations import Generation
from levada.destinations.opensearch.ids import ids_of
from levada.destinations.opensearch.layout import one_array
from levada.destinations.opensearch.naming import writer_alias
from levada.destinations.opensearch.pieces import Piece, pieces
from levada.destinations.opensearch.state import Progress, State
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import OLD
from levada.segments.batch import TableEvents

Mask = npt.NDArray[np.bool_]

_FIRST_IDS: Final = 8
_MOST_IDS: Final = 200
_MGET_BYTES: Final = 8 << 20
"""The size of the documents that are read together, by the size of those before. A node holds them in its memory."""
_JOURNAL_BYTES: Final = 4 << 20
"""The size of an entry of the journal."""


@dataclass(slots=True)
class Upsert:
    """Applies batches to one generation. ``progress`` is the stored one, and advances with each piece."""

    client: Client
    state: State
    generation: Generation
    progress: Progress
    schema: ReplicatedTableSchema

    def run(self, events: TableEvents, truncated_before: tuple[int, int] | None = None) -> None:
        """Apply the changes that the progress does not include yet."""
        after, above = self.progress.lsn or events.after, self.progress.version
        stop = None if self.progress.journal is None else self.progress.journal.version
        last: Piece | None = None
        for piece in pieces(events, after, above, truncated_before, stop):
            if last is not None:
                # The watermark of the batch covers the last piece.
                self._save(replace(self.progress, version=last.version, journal=None))
            self._apply(piece)
            last = piece

    def _save(self, progress: Progress) -> None:
        done = self.progress.journal
        self.progress = self.state.save(progress, self.generation.alias)
        if done is not None:
            self.state.drop_journal(progress.index, done, self.generation.alias)

    def _apply(self, piece: Piece) -> None:
        seed = new_seed()
        folded = fold(piece.rows, self.schema, seed)
        touched = _Touched.of(piece.rows, self.schema, seed)
        names = [c.name for c in self.schema.key_columns]
        ids = ids_of([one_array(folded.upserts.column(n)) for n in names], self.schema)
        known: Mapping[int, tuple[Mask, pa.Array]] = {}
        rows, kept = folded.upserts, ids
        if folded.partial_rows is not None:
            known, there = self._known(folded, folded.partial_rows, touched, ids, piece.version)
            if there.any():
                # These documents have this state or a newer one. Their values are not needed.
                keep = pa.array(~there)
                known = {a: (mask[~there], values) for a, (mask, values) in known.items()}
                rows, kept = rows.filter(keep), ids.filter(keep)
        bulk = Bulk(self.client, writer_alias(self.generation.index, self.progress.epoch), self.generation.alias)
        for part, documents in self.generation.layout.documents(rows, self.schema, known):
            bulk.index(kept.slice(part.start, part.stop - part.start), documents, piece.version)
        gone = pc.unique(touched.ids)
        bulk.delete(gone.filter(pc.invert(pc.is_in(gone, value_set=ids))), piece.version)

    def _known(
        self, folded: Folded, partial: PartialRows, touched: _Touched, ids: pa.Array, version: int
    ) -> tuple[dict[int, tuple[Mask, pa.Array]], Mask]:
        """Return the unknown values, and a mask of the upserts whose documents are up to date already.

        The values are a mask of the upserts and the JSON of their values, by attnum.
        """
        attnums = {c.name: c.attnum for c in self.schema.columns}
        unknown = {attnums[name]: mask for name, mask in partial.columns.items()}
        targets = ids.take(pa.array(partial.rows)).to_pylist()
        formers = touched.ids_of(partial.former_keys)
        values = self._journaled(version)
        unread = [(t, f) for t, f in zip(targets, formers, strict=True) if t not in values]
        values |= self._read(unread, list(unknown), version)
        moved = {t: values[t] for t, f in unread if t != f and values[t] is not None}
        if moved:
            self._write_journal(moved, version)
        found = np.array([values[t] is not None for t in targets], np.bool_)
        there = np.zeros(len(ids), np.bool_)
        there[partial.rows[~found]] = True
        known = {}
        for attnum, mask in unknown.items():
            mask = mask & found
            rows = np.zeros(len(ids), np.bool_)
            rows[partial.rows[mask]] = True
            texts = [exact_dumps(_value(values[targets[i]], attnum)) for i in np.flatnonzero(mask)]
            known[attnum] = (rows, pa.array(texts, pa.large_string()))
        return known, there

    def _read(self, rows: list[tuple[str, str]], attnums: list[int], version: int) -> dict[str, dict[str, Any] | None]:
        """Return the unknown values by target id, or None for a target that has this version or a higher one.

        ``rows`` are pairs of a target id and the id before. Raise NeedsOperator ``unknown_value`` if a document with a
        value is missing.
        """
        fields = {f.attnum: f.name for f in self.generation.layout.fields if f.attnum in attnums}
        held = self._documents(sorted({i for row in rows for i in row}))
        values: dict[str, dict[str, Any] | None] = {}
        for target, former in rows:
            at_target = held.get(target)
            if at_target is not None and at_target[0] >= version:
                values[target] = None
                continue
            document = held.get(former)
            if document is None or document[0] >= version:
                # A newer document is that of another row, which has the id now.
                raise row_missing(self.schema.name)
            values[target] = {str(a): document[1].get(name) for a, name in fields.items()}
        return values

    def _documents(self, ids: list[str]) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return the version and the content of each document that exists, by id.

        The content is complete, because OpenSearch would round the numbers of a filtered one.
        """
        alias = writer_alias(self.generation.index, self.progress.epoch)
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        start, step, size = 0, _FIRST_IDS, 0
        while start < len(ids):
            asked = {"ids": ids[start : start + step]}
            start += step
            doing = f"reading {self.generation.alias}"
            answer = self.client.request("POST", f"/{alias}/_mget", asked, doing=doing, seconds=120)
            for document in answer["docs"]:
                if "error" in document:
                    # The document may exist.
                    raise unread(document["error"].get("type"), doing)
                if document.get("found"):
                    content = document.get("_source", {})
                    found[document["_id"]] = (int(document["_version"]), content)
                    size += sum(len(str(value)) for value in content.values())
            step = max(1, min(_MOST_IDS, _MGET_BYTES * len(found) // size)) if size else _MOST_IDS
        return found

    def _journaled(self, version: int) -> dict[str, dict[str, Any] | None]:
        """Return the values in the journal of an interrupted piece by target id. It is empty for another version."""
        journal = self.progress.journal
        if journal is None or journal.version != version:
            return {}
        entries = self.state.read_journal(self.progress, self.generation.alias)
        return {row["id"]: row["values"] for entry in entries for row in entry}

    def _write_journal(self, values: Mapping[str, Any], version: int) -> None:
        entries: list[list[dict[str, Any]]] = [[]]
        size = 0
        for target, row in values.items():
            entry = {"id": target, "values": row}
            size += len(json.dumps(entry))
            entries[-1].append(entry)
            if size > _JOURNAL_BYTES:
                entries.append([])
                size = 0
        self._save(self.state.put_journal(self.progress, version, entries, self.generation.alias))


@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """The ids that the changes of a piece read, write or delete, with their keys. An id may be there repeatedly."""

    ids: pa.Array
    keys: Keys

    @classmethod
    def of(cls, rows: pa.Table, schema: ReplicatedTableSchema, seed: bytes) -> _Touched:
        encoder = KeyEncoder(schema, seed)
        columns = [one_array(rows.column(name)) for name in encoder.names]
        ids, keys = ids_of(columns, schema), encoder.encode_columns(columns)
        if OLD not in rows.column_names or rows.column(OLD).null_count == rows.num_rows:
            return cls(ids, keys)
        old = one_array(rows.column(OLD))
        old = old.filter(old.is_valid())
        olds = [pc.struct_field(old, name) for name in encoder.names]
        return cls(pa.concat_arrays([ids, ids_of(olds, schema)]), Keys.concat([keys, encoder.encode_columns(olds)]))

    def ids_of(self, keys: Keys) -> list[str]:
        """Return the ids of keys, each of which is among the keys of this piece."""
        order = self.keys.order()
        held = self.keys.take(order)
        starts = np.flatnonzero(held.starts())
        both = Keys.concat([held.take(starts), keys])
        by_key = both.order(stable=True)
        firsts = np.flatnonzero(both.take(by_key).starts())
        group = np.cumsum(np.isin(np.arange(len(by_key)), firsts)) - 1
        place = np.empty(len(by_key), np.int64)
        place[by_key] = by_key[firsts][group]
        found: list[str] = self.ids.take(pa.array(order[starts[place[len(starts) :]]])).to_pylist()
        return found


def _value(values: Mapping[str, Any] | None, attnum: int) -> Any:
    assert values is not None
    return values.get(str(attnum))
