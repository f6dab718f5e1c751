"""Levada's own index: one document for each generation, with its watermark.

A document is written only if no other process has written it since it was read (``if_seq_no``). So an older driver sees
the newer epoch before it stores a watermark. Reads are by id, and so see the last write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import quote

from levada.destinations.fenced import require_epoch
from levada.destinations.opensearch.client import BUSY, Client, Conflict, NotFound
from levada.destinations.opensearch.exact_json import exact_dumps, exact_loads
from levada.destinations.opensearch.generations import COMPLETE, Generation
from levada.errors import NeedsOperator, StaleEpoch, Transient
from levada.values import Lsn

_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Journal:
    """The values that a piece of a batch is about to move to documents with other ids, written before the move.

    ``version`` is that of the piece, and ``epoch`` that of the driver that has written the journal. The documents
    ``<index>~j<epoch>-<n>`` have the values, for n below ``count``. So a late request of an older driver changes no
    journal of a newer one.
    """

    version: int
    count: int
    epoch: int

    def paths(self, state_index: str, index: str) -> list[str]:
        """Return the paths of the documents."""
        return [
            f"/{state_index}/_doc/{quote(f'{index}~j{self.epoch}-{number}', safe='')}" for number in range(self.count)
        ]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one generation.

    ``lsn`` is the watermark, or None until the copy is complete. Changes up to ``version`` are applied too, although
    their batch may not be complete.
    """

    index: str
    uuid: str
    epoch: int
    lsn: Lsn | None = None
    version: int = -1
    journal: Journal | None = None
    sequence: tuple[int, int] | None = None
    """The sequence number and primary term of the document, or None if it does not exist."""

    def at(self, lsn: Lsn) -> Progress:
        """Return the progress after a complete batch up to ``lsn``."""
        return replace(self, lsn=lsn, version=-1, journal=None)

    def to_json(self, pipeline: str) -> dict[str, Any]:
        """Return the document."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "pipeline": pipeline,
            "epoch": self.epoch,
            "lsn": None if self.lsn is None else str(self.lsn),
            "version": self.version,
            "journal": None if self.journal is None else [self.journal.version, self.journal.count, self.journal.epoch],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], sequence: tuple[int, int]) -> Self:
        """Parse the result of `to_json`."""
        lsn, journal = data["lsn"], data["journal"]
        return cls(
            data["index"],
            data["uuid"],
            int(data["epoch"]),
            None if lsn is None else Lsn.parse(lsn),
            int(data["version"]),
            None if journal is None else Journal(*journal),
            sequence,
        )


@dataclass(frozen=True, slots=True)
class State:
    """The requests on Levada's own index."""

    client: Client
    index: str
    pipeline: str
    replicas: int

    def create(self) -> None:
        """Create the index if it is missing."""
        doing = f"creating the index {self.index}"
        settings = {"number_of_shards": 1, "number_of_replicas": self.replicas, "translog.durability": "request"}
        settings |= {"default_pipeline": "_none", "final_pipeline": "_none"}
        # Its documents are read by id alone.
        body = {"settings": {"index": settings}, "mappings": {"dynamic": False, **COMPLETE}}
        # The client answers False instead of an error.
        if self.client.request("HEAD", f"/{self.index}", doing=doing):
            return
        try:
            self.client.request("PUT", f"/{self.index}", body, doing=doing, wait_for_active_shards=1)
        except NeedsOperator as error:
            if "resource_already_exists" not in error.message:
                raise

    def read(self, generation: Generation) -> Progress | None:
        """Return the progress of a generation, or None if there is none of this index."""
        path = f"/{self.index}/_doc/{quote(generation.index, safe='')}"
        try:
            found = self.client.request("GET", path, doing=f"reading the watermark of {generation.alias}")
        except NotFound:
            return None
        read = Progress.from_json(found["_source"], (found["_seq_no"], found["_primary_term"]))
        return read if read.uuid == generation.uuid else None

    def claim(self, generation: Generation, epoch: int) -> Progress:
        """Store the epoch of this driver in the progress, and return it. Raise StaleEpoch if it has a newer one."""
        for _ in range(_ATTEMPTS):
            now = self.read(generation)
            if now is None:
                # Another client may have removed the index. A write would create one without its settings.
                self.create()
                now = Progress(generation.index, generation.uuid, epoch)
            require_epoch(now.epoch, epoch)
            if now.epoch == epoch and now.sequence is not None:
                return now
            try:
                return self._write(replace(now, epoch=epoch), generation.alias)
            except Conflict:
                continue
        raise Transient("destination_busy", f"other drivers claim {generation.alias} at the same moment", hint=BUSY)

    def save(self, progress: Progress, table: str) -> Progress:
        """Store the progress, and return it with its new sequence number.

        Raise StaleEpoch if a newer driver has written it, and Transient if its present content is unknown.
        """
        try:
            return self._write(progress, table)
        except Conflict:
            path = f"/{self.index}/_doc/{quote(progress.index, safe='')}"
            try:
                found = self.client.request("GET", path, doing=f"reading the watermark of {table}")
            except NotFound:
                raise Transient("destination_busy", f"the watermark of {table} was removed", hint=BUSY) from None
            now = Progress.from_json(found["_source"], (found["_seq_no"], found["_primary_term"]))
            if now.epoch > progress.epoch:
                raise StaleEpoch(progress.epoch, now.epoch) from None
            if replace(now, sequence=None) == replace(progress, sequence=None):
                return now
            raise Transient(
                "destination_busy", f"the watermark of {table} was written by another process", hint=BUSY
            ) from None

    def forget(self, generation: Generation) -> None:
        """Remove the progress of a generation."""
        path = f"/{self.index}/_doc/{quote(generation.index, safe='')}"
        try:
            self.client.request("DELETE", path, doing=f"removing the watermark of {generation.alias}")
        except NotFound:
            return

    def put_journal(self, progress: Progress, version: int, values: list[list[dict[str, Any]]], table: str) -> Progress:
        """Store the entries of a journal, and return the progress that refers to it. The caller saves it."""
        journal = Journal(version, len(values), progress.epoch)
        for path, value in zip(journal.paths(self.index, progress.index), values, strict=True):
            # As text, because OpenSearch parses the numbers of an object.
            self.client.request("PUT", path, {"rows": exact_dumps(value)}, doing=f"writing the journal of {table}")
        return replace(progress, journal=journal)

    def read_journal(self, progress: Progress, table: str) -> list[list[dict[str, Any]]]:
        """Return the entries of the journal."""
        assert progress.journal is not None
        found: list[list[dict[str, Any]]] = []
        for path in progress.journal.paths(self.index, progress.index):
            entry = self.client.request("GET", path, doing=f"reading the journal of {table}")
            found.append(exact_loads(entry["_source"]["rows"]))
        return found

    def drop_journal(self, index: str, journal: Journal, table: str) -> None:
        """Remove the entries of a journal that nothing refers to any more."""
        for path in journal.paths(self.index, index):
            try:
                self.client.request("DELETE", path, doing=f"removing the journal of {table}")
            except NotFound:
                continue

    def _write(self, progress: Progress, table: str) -> Progress:
        path = f"/{self.index}/_doc/{quote(progress.index, safe='')}"
        if progress.sequence is None:
            condition: dict[str, Any] = {"op_type": "create"}
        else:
            condition = {"if_seq_no": progress.sequence[0], "if_primary_term": progress.sequence[1]}
        body = progress.to_json(self.pipeline)
        doing = f"storing the watermark of {table}"
        done = self.client.request("PUT", path, body, doing=doing, **condition)
        return replace(progress, sequence=(done["_seq_no"], done["_primary_term"]))
