"""The transitions between the phases of a table, and the phase after a restart.

============ ======================================== =================================================
Phase        Followed by                              At a restart
============ ======================================== =================================================
Init         DataSync, Errored                        Init
DataSync     FinishedCopy, Errored, Init              Init: the copy is resumed, or dropped and repeated
FinishedCopy SyncWait, Errored, Init                  FinishedCopy: the copy is kept, changes are staged
SyncWait     Catchup, Errored, Init                   (not persisted)
Catchup      SyncDone, Errored, Init                  (not persisted)
SyncDone     Ready, Errored, Init                     SyncDone
Ready        Errored, Init                            Ready
Errored      the phase before it, Init                Errored, until a retry
============ ======================================== =================================================

Init after anything else is a resync. A retry returns to the stored phase before Errored, as a restart would resume it.
A table that is parked again, with another error, goes from Errored to Errored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)

TRANSITIONS: Final[Mapping[str, frozenset[str]]] = {
    Init.name: frozenset({DataSync.name, Errored.name}),
    DataSync.name: frozenset({FinishedCopy.name, Errored.name, Init.name}),
    FinishedCopy.name: frozenset({SyncWait.name, Errored.name, Init.name}),
    SyncWait.name: frozenset({Catchup.name, Errored.name, Init.name}),
    Catchup.name: frozenset({SyncDone.name, Errored.name, Init.name}),
    SyncDone.name: frozenset({Ready.name, Errored.name, Init.name}),
    Ready.name: frozenset({Errored.name, Init.name}),
    Errored.name: frozenset({Init.name, FinishedCopy.name, SyncDone.name, Ready.name, Errored.name}),
}
"""The phases that may follow each phase, by name."""

STREAMING: Final = frozenset({FinishedCopy.name, SyncWait.name, Catchup.name, SyncDone.name, Ready.name})
"""The phases after the copy, in which staged changes are applied."""


def check_transition(old: TableReplicationPhase, new: TableReplicationPhase) -> None:
    """Raise ValueError for a transition that `TRANSITIONS` does not have, which is a bug in Levada."""
    if new.name not in TRANSITIONS[old.name]:
        raise ValueError(f"{new.name} cannot follow {old.name}")


def at_restart(phase: TableReplicationPhase | None) -> TableReplicationPhase:
    """Return the phase in which a table resumes after a restart. A table without a stored phase is at Init."""
    if phase is None or isinstance(phase, DataSync):
        return Init()
    return phase
