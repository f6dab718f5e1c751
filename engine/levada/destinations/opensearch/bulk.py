"""Bulk requests: their bodies, cut at a size limit, and the result of each document."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.destinations import json_text
from levada.destinations.opensearch.client import BLOCKED, CLOSED, RESYNC, UNAVAILABLE, Client, refusal
from levada.errors import LevadaError, NeedsOperator, Transient

BODY_BYTES: Final = 5 << 20
"""The size of a body. A larger document has a body of its own. OpenSearch's http.max_content_length is 100 MB."""
_PARAMETERS: Final = {
    # A removed alias must not become an index. See `naming.writer_alias`.
    "require_alias": "true",
    "filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason",
}
_END: Final = ',"version":%d,"version_type":"external"}}\n'
_BUSY_ATTEMPTS: Final = 6
_FIRST_PAUSE_S: Final = 0.25
_FIELD: Final = re.compile(r"field (?:name )?\[([^\]]{1,200})\]")
_GONE: Final = frozenset({"index_not_found_exception", "invalid_index_name_exception"})


class WriterAliasGone(NeedsOperator):
    """The alias of this driver was removed: by a newer driver, or with the index."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """Writes documents through one alias.

    ``ids`` are large_string, and ``version`` is the external version of all documents. A document that has this version
    or a higher one already stays as it is.
    """

    client: Client
    alias: str
    table: str

    def index(self, ids: pa.Array, sources: pa.Array, version: int) -> None:
        """Write documents. ``sources`` is their JSON. Raise NeedsOperator ``document_refused`` for a refused one."""
        self._send('{"index":{"_id":', ids, [_END % version, sources, "\n"])

    def delete(self, ids: pa.Array, version: int) -> None:
        """Delete documents. A missing one is no error."""
        self._send('{"delete":{"_id":', ids, [_END % version])

    def _send(self, begin: str, ids: pa.Array, rest: Sequence[pa.Array | str]) -> None:
        if not len(ids):
            return
        lines = json_text.joined(begin, json_text.quoted(ids), *rest)
        for start, end in _cuts(_offsets(lines)):
            self._write(lines.slice(start, end - start), ids.slice(start, end - start))

    def _write(self, lines: pa.Array, ids: pa.Array) -> None:
        """Send one body. Items that are refused because the cluster is busy are sent again, after a growing pause."""
        for attempt in range(_BUSY_ATTEMPTS):
            busy = self._refused(lines, ids)
            if not len(busy):
                return
            time.sleep(_FIRST_PAUSE_S * 2**attempt)
            lines, ids = lines.take(busy), ids.take(busy)
        raise Transient("destination_unavailable", f"writing {self.table}: OpenSearch is busy (429)", hint=UNAVAILABLE)

    def _refused(self, lines: pa.Array, ids: pa.Array) -> pa.Array:
        """Send a body, and return the indices of the items that the busy cluster refused."""
        doing, body = f"writing {self.table}", _body(lines)
        if len(body) > BODY_BYTES:
            self._check_size(len(body), ids[0].as_py())
        answer = self.client.request("POST", f"/{self.alias}/_bulk", body, doing=doing, seconds=120, **_PARAMETERS)
        items = answer.get("items", [])
        if len(items) != len(ids):
            raise Transient(
                "destination_unavailable",
                f"{doing}: OpenSearch answers {len(items)} of {len(ids)} items",
                hint=UNAVAILABLE,
            )
        busy = []
        if answer.get("errors"):
            for i, item in enumerate(items):
                (result,) = item.values()
                if (error := result.get("error")) is None or result["status"] == 409:
                    continue
                if result["status"] != 429 or error.get("type") == BLOCKED:
                    raise self._error(result["status"], error, ids[i].as_py())
                busy.append(i)
        return pa.array(busy, pa.int64())

    def _check_size(self, size: int, document: str) -> None:
        """Raise NeedsOperator ``document_too_large`` if a node would close the connection instead of an answer."""
        limit = self.client.content_length()
        if size > limit:
            raise NeedsOperator(
                "document_too_large",
                f"{self.table}: the document with _id {document} has {size} bytes, and OpenSearch accepts {limit}",
                hint="raise http.max_content_length of the nodes, or exclude the column with columns.exclude in the"
                " table's TableSync",
            )

    def _error(self, status: int, error: dict[str, Any], document: str) -> LevadaError:
        kind = str(error.get("type"))
        if kind in _GONE:
            return WriterAliasGone(
                "destination_table_missing", f"{self.table}: the index {self.alias} is missing", hint=RESYNC
            )
        if status != 400 or kind == CLOSED:
            return refusal(status, kind, f"writing {self.table}: OpenSearch answers {status} {kind}")
        # The reason quotes values, but the names of fields in it are safe.
        field = _FIELD.search(str(error.get("reason", "")))
        where = f" at field {field[1]}" if field else ""
        return NeedsOperator(
            "document_refused",
            f"{self.table}: OpenSearch refuses the document with _id {document}: {kind}{where}",
            hint="correct the row, or exclude the column with columns.exclude in the table's TableSync",
        )


def unread(kind: object, doing: str) -> LevadaError:
    """Return the error for a document that could not be read, by OpenSearch's type of error."""
    if kind in _GONE:
        return WriterAliasGone("destination_table_missing", f"{doing}: the index is missing", hint=RESYNC)
    if kind == CLOSED:
        return refusal(400, CLOSED, doing)
    return Transient("destination_unavailable", f"{doing}: OpenSearch answers {kind}", hint=UNAVAILABLE)


def _cuts(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines with at most `BODY_BYTES`, or with one line."""
    start, last = 0, len(offsets) - 1
    while start < last:
        fits = int(np.searchsorted(offsets, offsets[start] + BODY_BYTES, side="right")) - 1
        end = min(max(fits, start + 1), last)
        yield start, end
        start = end


def _offsets(lines: pa.Array) -> npt.NDArray[np.int64]:
    return np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]


def _body(lines: pa.Array) -> bytes:
    offsets = _offsets(lines)
    return bytes(memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]])
