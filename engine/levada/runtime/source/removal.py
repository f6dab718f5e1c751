"""The proofs that a slot and a publication are the pipeline's, without which a clean-up keeps them. Pure.

A user may name any slot and publication in a manifest, also those of another program.
"""

from __future__ import annotations

from dataclasses import dataclass

from levada import codes
from levada.errors import LevadaError
from levada.postgres.publications import drop_statement
from levada.postgres.slots import SlotStatus, validate_slot
from levada.runtime.config import PipelineConfig
from levada.values import PipelineOwner


@dataclass(frozen=True, slots=True)
class Proofs:
    """The records of the pipeline in its store and at its source.

    ``has_run`` is True if the store has a record of the pipeline. ``recorded_slot`` is the slot in its record of the
    owner, empty without one. ``publication_owner`` is the owner in the comment of the managed publication.
    """

    has_run: bool
    recorded_slot: str
    publication_owner: PipelineOwner | None


def why_slot_stays(config: PipelineConfig, status: SlotStatus | None, owner: PipelineOwner, proofs: Proofs) -> str:
    """Return why the slot is kept, with the SQL to drop it, or an empty string if it may be dropped.

    A slot has no comment. Proofs are a record of the pipeline in its store, and the publication's comment.
    """
    if status is None:
        return ""
    try:
        validate_slot(status, config.source.database)
    except LevadaError as error:
        if error.code == codes.SLOT_FOREIGN:
            return error.message
    if proofs.recorded_slot not in ("", status.name):
        why = f"the state of pipeline {config.name} belongs to slot {proofs.recorded_slot}"
    elif proofs.has_run or is_own(proofs.publication_owner, owner):
        return ""
    else:
        why = f"the store has no state of pipeline {config.name} that shows whose the slot is"
    drop = f"SELECT pg_drop_replication_slot('{status.name}');"
    return f"slot {status.name}: kept, because {why}. If nothing needs it: {drop}"


def why_publication_stays(config: PipelineConfig, *, exists: bool, owner: PipelineOwner, proofs: Proofs) -> str:
    """Return why the publication is kept, with the SQL to drop it, or an empty string if it may be dropped."""
    if not exists or is_own(proofs.publication_owner, owner):
        return ""
    name = config.publication.name
    return (
        f"publication {name}: kept, because its comment does not name pipeline {config.full_name} as its owner."
        f" If nothing needs it: {drop_statement(name)}"
    )


def is_own(found: PipelineOwner | None, owner: PipelineOwner) -> bool:
    """Return True if this Pipeline is the owner that was found."""
    return found is not None and found.uid == owner.uid
