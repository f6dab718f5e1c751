"""Which phase may follow which, and where a restart puts a table.

============ ======================================== =================================================
Phase        Followed by                              At a restart
============ ======================================== =================================================
Init         DataSync, Errored                        Init
DataSync     FinishedCopy, Errored, Init              Init: the half-made copy is dropped, made again
FinishedCopy SyncWait, Errored, Init                  FinishedCopy: not copied again, changes are staged
SyncWait     Catchup, Errored, Init                   (not persisted)
Catchup      SyncDone, Errored, Init                  (not persisted)
SyncDone     Ready, Errored, Init                     SyncDone
Ready        Errored, Init                            Ready
Errored      what the history has before it, Init     Errored, until a retry
============ ======================================== =================================================

Init after anything else is a resync.
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
    Errored.name: frozenset({Init.name, DataSync.name, FinishedCopy.name, SyncDone.name, Ready.name, Errored.name}),
}
"""What the table above says of the middle column."""

STREAMING: Final = frozenset({FinishedCopy.name, SyncWait.name, Catchup.name, SyncDone.name, Ready.name})
"""The phases in which staged changes are applied: the copy is at the destination."""


def check_transition(old: TableReplicationPhase, new: TableReplicationPhase) -> None:
    """Raise ValueError for a step that the table of transitions does not have: a defect of ours, never of a user."""
    if new.name not in TRANSITIONS[old.name]:
        raise ValueError(f"{new.name} cannot follow {old.name}")


def at_restart(phase: TableReplicationPhase | None) -> TableReplicationPhase:
    """Return where a table goes on after the process was restarted; a table that is not known begins."""
    if phase is None or isinstance(phase, DataSync):
        return Init()
    return phase
