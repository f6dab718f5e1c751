"""The codecs of all stored facts, without a storage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from levada.stores import CopyOrder, DestinationTableMetadata, OwnerRecord, TableAction, TableControls, table_worker
from levada.stores.codecs import (
    ACTION,
    CONTROLS,
    DESTINATION,
    FINGERPRINT,
    KINDS,
    ORDER,
    OWNER,
    PHASES,
    PROGRESS,
    SCHEMA,
    key_worker,
    worker_key,
)
from levada.stores.codecs import (
    CUT as CUT_KIND,
)
from levada.stores.phases import FinishedCopy
from levada.stores.storage import DocumentKind, Key, document_text
from levada.stores.workers import resync_worker
from levada.testing.store_samples import CUT, ERRORED, METADATA, ORDERS, schema
from levada.values import Lsn, PipelineOwner, SnapshotId

VALUES: list[tuple[DocumentKind[Any], Any]] = [
    (PHASES, FinishedCopy(Lsn(2**63))),
    (PHASES, ERRORED),
    (SCHEMA, schema(9)),
    (PROGRESS, Lsn(2**64 - 1)),
    (CONTROLS, TableControls(2**40, 7, '{"ü": "\x00"}')),
    (FINGERPRINT, "any text \udc80"),
    (ORDER, CopyOrder("token", 3, "worker", '{"lsn": "0/7"}')),
    (ACTION, TableAction.RESYNC),
    (OWNER, OwnerRecord(PipelineOwner("uid", "a/shop"), "slot", "publication", ("shop", "b/shop"))),
    (OWNER, OwnerRecord(None, "slot", "publication")),
    (CUT_KIND, CUT),
    (DESTINATION, METADATA),
    (DESTINATION, DestinationTableMetadata("ü", SnapshotId(0), SnapshotId(2**64 - 1), '{"a": 1}')),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[kind.name for kind, _ in VALUES])
def test_a_value_survives_its_document(kind: DocumentKind[Any], value: object) -> None:
    """A decoded document has the value that was encoded, of the same type, through ASCII text."""
    text = document_text(kind.encode(value))
    decoded = kind.decode(json.loads(text))
    assert text.isascii()
    assert (decoded, type(decoded)) == (value, type(value))


def test_every_kind_has_a_name_of_its_own() -> None:
    """A name is part of a ConfigMap's key. Every kind is tested above."""
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert all(kind.name.isalpha() for kind in KINDS)
    assert {kind.name for kind, _ in VALUES} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("worker", [table_worker(ORDERS), resync_worker(ORDERS), "capture", "table_", "table_x", "0/7"])
def test_a_worker_has_a_key(worker: str) -> None:
    """The key of a table's worker belongs to the table, and every worker is found by its key."""
    key = worker_key(PROGRESS, worker)
    assert key_worker(key) == worker
    assert (key == Key(PROGRESS, ORDERS)) == (worker == table_worker(ORDERS))
