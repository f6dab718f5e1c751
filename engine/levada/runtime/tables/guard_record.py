"""The record of what the guard did, in the store. It outlives the process, so that a restart explains a lost slot."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from levada import codes
from levada.errors import SlotLost
from levada.runtime.config import GuardLimit
from levada.status import GuardAction
from levada.status.document import Part
from levada.stores.interface import PipelineStore

_SUBJECT: Final = "guard"
_ACTIONS: Final = 20


@dataclass(frozen=True, slots=True)
class _GuardRecord(Part):
    actions: tuple[GuardAction, ...] = ()
    released: str = ""
    """The message of the release of the slot, empty while the slot is kept."""


def guard_actions(store: PipelineStore) -> tuple[GuardAction, ...]:
    """Return the last actions of the guard, also those of earlier processes, the newest last."""
    return _record(store).actions


def record_action(store: PipelineStore, action: GuardAction, *, released: str | None = None) -> tuple[GuardAction, ...]:
    """Store an action, and return the last ones. ``released`` is the message of one that drops the slot."""
    record = _record(store)
    actions = (*record.actions, action)[-_ACTIONS:]
    _save(store, replace(record, actions=actions, released=record.released if released is None else released))
    # As they are read later, with their times rounded, so that a reader does not take them for new ones.
    return guard_actions(store)


def record_release(
    store: PipelineStore, limit: GuardLimit, slot: str, because: str, at: datetime
) -> tuple[GuardAction, ...]:
    """Store that the slot is dropped, which is done next. Return the last actions."""
    action = GuardAction(limit.measure, limit.policy, at, f"{because}, so slot {slot} is dropped")
    return record_action(store, action, released=f"the guard dropped slot {slot}, because {because}")


def slot_release(store: PipelineStore) -> str:
    """Return why the guard dropped the slot, empty if it did not."""
    return _record(store).released


def explain_missing_slot(store: PipelineStore, error: SlotLost) -> SlotLost:
    """Return the error of a slot that does not exist. It is ``slot_released`` if the guard has dropped the slot."""
    released = slot_release(store)
    if error.code != codes.SLOT_MISSING or not released:
        return error
    return SlotLost("slot_released", released, hint=error.hint)


def slot_exists(store: PipelineStore) -> None:
    """Record that there is a slot, which the guard did not drop or which has replaced the dropped one."""
    record = _record(store)
    if record.released:
        _save(store, replace(record, released=""))


def _record(store: PipelineStore) -> _GuardRecord:
    text = store.get_fingerprint(_SUBJECT)
    try:
        return _GuardRecord() if text is None else _GuardRecord.from_json(json.loads(text))
    except (ValidationError, ValueError):
        return _GuardRecord()


def _save(store: PipelineStore, record: _GuardRecord) -> None:
    store.store_fingerprint(_SUBJECT, json.dumps(record.to_json()))
