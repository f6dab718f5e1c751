"""The rule that decides what the manifest's requests for a table lead to. Pure: no store, thread or clock."""

from __future__ import annotations

from enum import StrEnum

from levada.runtime.config import TableConfig
from levada.runtime.job import Job
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings, TableRequest, pending_request
from levada.stores.interface import TableControls
from levada.stores.phases import Errored, Init


class RequestStep(StrEnum):
    """The step that follows from the requests for a table."""

    WAIT = "wait"
    """A job has the table. The requests stay."""
    CANCEL_COPY = "cancel copy"
    """The running copy has other settings, or a resync was requested since it began."""
    APPLY_SETTINGS = "apply settings"
    """The table waits for its copy, which begins with the settings of that time."""
    RESYNC = "resync"
    RETRY = "retry"
    NOTHING = "nothing"


def request_step(
    record: TableRecord,
    controls: TableControls,
    before: CopySettings | None,
    table_config: TableConfig,
    wanted: CopySettings,
) -> RequestStep:
    """Return the next step for the table.

    ``before`` are the settings of its last copy, and ``wanted`` those of a copy that begins now.
    """
    if record.busy is Job.COPY:
        other = record.copy.settings not in (None, wanted)
        requested = table_config.resync_nonce not in (0, controls.resync_nonce)
        return RequestStep.CANCEL_COPY if other or requested else RequestStep.WAIT
    request = pending_request(controls, before, table_config, wanted)
    if request is TableRequest.RESYNC and isinstance(record.phase, Errored) and record.copy.settings == wanted:
        # A copy with these settings has parked the table, and another one would be refused again.
        request = pending_request(controls, wanted, table_config, wanted)
    if (record.busy or record.resync.abandoned) and request is not TableRequest.NOTHING:
        return RequestStep.WAIT
    if isinstance(record.phase, Init):
        return RequestStep.APPLY_SETTINGS
    match request:
        case TableRequest.RESYNC:
            return RequestStep.RESYNC
        case TableRequest.RETRY:
            return RequestStep.RETRY
        case TableRequest.NOTHING:
            return RequestStep.NOTHING
