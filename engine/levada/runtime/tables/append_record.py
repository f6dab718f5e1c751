"""The record of the second publication, which says whether the slot can be read with it, and whether it is.

Up to version 17, PostgreSQL cannot decode WAL from before a publication was created. So a session of the stream begins
without the second publication until it begins after its creation, and no table of it is copied before such a session.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from levada.postgres.append_publication import AppendIdentity, PublicationNames
from levada.runtime.config import PipelineConfig
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore

_CREATED: Final = "append_publication"
_STREAMED: Final = "append_publication_streamed"


def record_append(store: PipelineStore, found: AppendIdentity | None, *, before_slot: bool) -> None:
    """Store the second publication, if it can be read from an LSN on. One from before the slot can be read at once."""
    kept = _read(store)
    if found is None or (kept is not None and kept.oid == found.oid and not before_slot):
        return
    if before_slot or found.lsn:
        readable = replace(found, lsn="") if before_slot else found
        store.store_fingerprint(_CREATED, json.dumps(asdict(readable)))
        if before_slot:
            # The first session of the slot streams it.
            record_streamed(store, found.oid)


def readable_from(store: PipelineStore, start: Lsn) -> int:
    """Return the OID of the publication with which a session may begin at this LSN, 0 without one."""
    kept = _read(store)
    return 0 if kept is None or (kept.lsn and start < Lsn.parse(kept.lsn)) else kept.oid


def has_appended(store: PipelineStore) -> bool:
    """Return True if the pipeline has had a second publication."""
    return _read(store) is not None


def record_streamed(store: PipelineStore, oid: int) -> None:
    """Store with which second publication the sessions of the stream begin, 0 for none."""
    if oid and store.get_fingerprint(_STREAMED) != str(oid):
        store.store_fingerprint(_STREAMED, str(oid))
    elif not oid and store.get_fingerprint(_STREAMED) is not None:
        store.delete_fingerprint(_STREAMED)


def is_streamed(store: PipelineStore, found: AppendIdentity | None) -> bool:
    """Return True if the stream has the changes of the second publication's tables."""
    return found is not None and store.get_fingerprint(_STREAMED) == str(found.oid)


def publication_names(config: PipelineConfig, store: PipelineStore) -> PublicationNames:
    """Return the names of the publications that are streamed."""
    appends = config.publication.append and store.get_fingerprint(_STREAMED) is not None
    return PublicationNames(config.publication.name, config.publication.append if appends else "")


def _read(store: PipelineStore) -> AppendIdentity | None:
    text = store.get_fingerprint(_CREATED)
    return None if text is None else AppendIdentity(**json.loads(text))
