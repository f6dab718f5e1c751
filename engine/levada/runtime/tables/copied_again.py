"""The errors of tables that are copied again by themselves, and why the other ones are not. Pure.

A table is copied again after a change of the source that is not in the stream. Otherwise a copy would meet the same
error, or do what only a person may decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from levada import codes
from levada.runtime.config import PipelineConfig
from levada.status import RetryPolicy
from levada.values import QualifiedTable

COPIED_AGAIN: Final = frozenset(
    {
        codes.KEY_CHANGED,
        codes.MASKED_COLUMN_RENAMED,
        codes.MASKED_COLUMN_RETYPED,
        codes.MODE_CHANGED,
        codes.NO_PREVIOUS_PHASE,
        codes.PARKED_BY_GUARD,
        codes.PARTITION_CHANGED,
        codes.PARTITION_IDENTITY,
        codes.PUBLICATION_CHANGED,
        codes.PUBLICATION_MEMBERSHIP_CHANGED,
        codes.ROW_FILTER_CHANGED,
        codes.SCHEMA_CHANGE_AMBIGUOUS,
        codes.SCHEMA_CHANGE_UNSUPPORTED,
        codes.SCHEMA_VERSION_MISSING,
        codes.SEGMENT_DAMAGED,
        codes.SEGMENT_MISSING,
        codes.STAGING_FILE_MISSING,
        codes.TABLE_NOT_PUBLISHED,
        codes.TABLE_REWRITTEN,
        codes.TYPE_CHANGED,
        codes.UNKNOWN_RELATION,
        codes.UNKNOWN_VALUE,
        codes.VALUE_OUT_OF_RANGE,
    }
)
"""Codes of errors that another copy resolves. One that is refused until a person has run SQL is tried again."""

_SAME_VALUE: Final = "a copy meets the same value"
_AT_SOURCE: Final = "a copy is refused as long as the source or the manifest is as it is"
_AT_DESTINATION: Final = "the cause is at the destination, and a retry continues where the table is"
_OTHERS: Final = "a copy would remove what another writer has written"

NOT_COPIED_AGAIN: Final[Mapping[str, str]] = {
    codes.AMBIGUOUS_COLUMNS: _AT_SOURCE,
    codes.COMPARISON_PENDING: "the table is compared with the source, and only the rows that differ are written",
    codes.COPY_DIFFERS: "another copy may differ too, and that is an error of Levada",
    codes.COPY_WHERE_REFUSED: _AT_SOURCE,
    codes.DESTINATION_CASCADE: "a copy does not keep the foreign key from changing rows again",
    codes.DESTINATION_CLOCK: "the clock is corrected, and the table is retried",
    codes.DESTINATION_COLLISION: _AT_SOURCE,
    codes.DESTINATION_CONSTRAINT: _AT_DESTINATION,
    codes.DESTINATION_DEPENDENTS: _AT_DESTINATION,
    codes.DESTINATION_ERROR: _AT_DESTINATION,
    codes.DESTINATION_LIMIT: _AT_DESTINATION,
    codes.DESTINATION_LOSES_ROWS: "a copy would lose the rows again",
    codes.DESTINATION_TABLE_MISSING: "the manifest may have another address than the tables",
    codes.EXCLUDED_COLUMN_RENAMED: "a copy could publish what is excluded",
    codes.FOREIGN_COLUMN: _OTHERS,
    codes.FOREIGN_SCHEMA_CHANGE: _OTHERS,
    codes.FOREIGN_TABLE_CHANGE: _OTHERS,
    codes.FOREIGN_WRITE: _OTHERS,
    codes.FORMAT_VERSION_LOWERED: "a copy would make the table again with another format",
    codes.GENERATED_COLUMN_UNMASKED: _AT_SOURCE,
    codes.IDENTITY_MISSING: _AT_SOURCE,
    codes.INTERNAL_ERROR: "the cause is not known",
    codes.KEPT_ROWS_MASKED: "a copy would remove the rows that are kept",
    codes.KEPT_ROWS_REPLACED: "a copy would remove the rows that are kept",
    codes.KEPT_ROWS_UNMOVABLE: "another copy would meet the same rows",
    codes.MASKED_COLUMN_MISSING: "a copy could publish what should be masked",
    codes.MASK_COMMENT_REFUSED: _AT_SOURCE,
    codes.MASK_KEY_MISSING: "a copy needs the key too",
    codes.MASK_REFUSED: _AT_SOURCE,
    codes.PARTITION_COLUMN_MISSING: _AT_SOURCE,
    codes.PARTITION_FOREIGN: _AT_SOURCE,
    codes.PARTITION_NAME_TAKEN: "the table could not be read during the copy",
    codes.PARTITION_TYPE_UNSUPPORTED: _AT_SOURCE,
    codes.PARTITION_UNLOGGED: _AT_SOURCE,
    codes.PARTITION_VALUE_UNREPRESENTABLE: _SAME_VALUE,
    codes.ROW_SECURITY: _AT_SOURCE,
    codes.ROWS_DIFFER: "the rows that differ show the cause, and a copy would remove them",
    codes.SCHEMA_CHANGE_REFUSED: "onSchemaChange is Fail",
    codes.SELECT_PRIVILEGE_MISSING: _AT_SOURCE,
    codes.SOURCE_CHANGED: "slot.onLost decides, because the source may be a wrong one",
    codes.TABLE_DAMAGED: "the file can be restored, with the history of the table",
    codes.TABLE_HISTORY_LOST: _OTHERS,
    codes.TABLE_RENAMED: _AT_SOURCE,
    codes.TABLE_ROLLED_BACK: _OTHERS,
    codes.UNREPRESENTABLE_VALUE: _SAME_VALUE,
    codes.VERIFY_UNREPAIRABLE: "it is the end of a command, and the table is not parked",
    codes.VERSION_EXHAUSTED: "the next transaction of this size would meet it again",
}
"""Codes of other errors of single tables, each with the reason why no copy is made without a person.

A table that missed changes for the time of such a cause at the source is copied as soon as that is gone.
"""


def copies_again(config: PipelineConfig, table: QualifiedTable, code: str, policy: RetryPolicy) -> bool:
    """Return True if a table that is parked with an error is copied again by itself, by what the manifest says.

    With the policy NO_RETRY it missed changes, so that only a copy resolves the error, whatever its code.
    """
    if code == codes.SOURCE_CHANGED:
        return config.slot.resync_when_lost and not config.table(table).held_when_lost
    missed = policy is RetryPolicy.NO_RETRY
    return (missed or (policy is RetryPolicy.MANUAL_RETRY and code in COPIED_AGAIN)) and config.table(
        table
    ).resyncs_by_itself
