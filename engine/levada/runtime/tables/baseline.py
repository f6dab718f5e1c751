"""The storage that a table's rows at the destination are known to come from, and its partitions since then."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from levada.schema.storage import LeafStorage, TableStorage, leaf_from_json, leaf_to_json
from levada.values import Lsn, TableId


class Statement(Protocol):
    """A statement of transaction ``xid`` with a message at LSN ``at``, committed at LSN ``committed``."""

    @property
    def at(self) -> Lsn:
        """The LSN of its message."""

    @property
    def committed(self) -> Lsn:
        """The LSN of its commit, perhaps long after."""

    @property
    def xid(self) -> int:
        """Its transaction."""


@dataclass(frozen=True, slots=True)
class CreatedLeaf:
    """A partition that transaction ``xid`` created, committed at LSN ``committed``.

    With ``xid`` 0 every later snapshot includes it.
    """

    leaf: LeafStorage
    xid: int
    committed: Lsn


@dataclass(frozen=True, slots=True)
class Baseline:
    """The storage for which a table's rows at the destination are known to be correct, as of ``lsn``.

    ``xid`` is the transaction of that state, 0 if every later snapshot includes it. ``created`` has partitions that
    were created since. A state of the catalog may lack them, because they were not committed when it was read.
    """

    lsn: Lsn
    xid: int
    storage: TableStorage
    created: Mapping[TableId, CreatedLeaf] = field(default_factory=dict)

    def has(self, statement: Statement) -> bool:
        """Return True if the state is that after this statement, or a later one.

        A catalog that was read while the statement's transaction was open has a later LSN than the statement, and
        lacks it.
        """
        return (statement.at if statement.xid == self.xid else statement.committed) < self.lsn

    def with_created(self, leaves: Mapping[TableId, LeafStorage], statement: Statement) -> Baseline:
        """Return the baseline with partitions that a statement created."""
        new = {
            oid: CreatedLeaf(leaf, statement.xid, statement.committed)
            for oid, leaf in leaves.items()
            if oid not in self.storage.leaves
        }
        return replace(self, created={**self.created, **new})

    def with_altered(self, leaves: Mapping[TableId, LeafStorage], statement: Statement) -> Baseline:
        """Return the baseline after a statement on partitions. It left all others as they were."""
        made = {oid: replace(m, leaf=leaves.get(oid, m.leaf)) for oid, m in self.created.items()}
        new = {oid: leaf for oid, leaf in leaves.items() if oid not in made}
        storage = replace(self.storage, leaves={**self.storage.leaves, **new})
        return Baseline(statement.at, statement.xid, storage, made)

    def with_doubt(self, leaves: Mapping[TableId, LeafStorage]) -> Baseline:
        """Return the baseline for a comparison with a state that may be older: it may lack partitions."""
        lacking = {
            oid: CreatedLeaf(leaf, 0, self.lsn) for oid, leaf in self.storage.leaves.items() if oid not in leaves
        }
        kept = {oid: leaf for oid, leaf in self.storage.leaves.items() if oid not in lacking}
        return replace(self, storage=replace(self.storage, leaves=kept), created={**self.created, **lacking})

    def storage_but_for(self, unseen: Collection[TableId] = ()) -> TableStorage:
        """Return the storage with the created partitions, but for those that a state of the catalog may lack."""
        seen = {oid: made.leaf for oid, made in self.created.items() if oid not in unseen}
        return replace(self.storage, leaves={**self.storage.leaves, **seen})

    def created_since(self, lsn: Lsn) -> Mapping[TableId, CreatedLeaf]:
        """Return the partitions that are not in a copy as of an LSN."""
        return {oid: made for oid, made in self.created.items() if made.committed >= lsn}

    def to_text(self) -> str:
        """Return the baseline as text for the store."""
        created = {int(oid): [m.xid, str(m.committed), leaf_to_json(m.leaf)] for oid, m in self.created.items()}
        return json.dumps(
            {"lsn": str(self.lsn), "xid": self.xid, "storage": self.storage.to_text(), "created": created}
        )

    @classmethod
    def from_text(cls, text: str) -> Baseline:
        """Parse the text that `to_text` returned. One of an earlier version of this program has no new partitions."""
        data = json.loads(text)
        created = {
            TableId(oid): CreatedLeaf(leaf_from_json(leaf), xid, Lsn.parse(committed))
            for oid, (xid, committed, leaf) in data.get("created", {}).items()
        }
        return cls(Lsn.parse(data["lsn"]), data["xid"], TableStorage.from_text(data["storage"]), created)
