"""The errors of tables that are copied again by themselves, and why the other ones are not. Pure.

A table is copied again after a change of the source that is not in the stream. Otherwise a copy would meet the same
error, or do what only a person may decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from levada.runtime.config import PipelineConfig
from levada.status import RetryPolicy
from levada.values import QualifiedTable

COPIED_AGAIN: Final = frozenset(
    {
        "key_changed",
        "mode_changed",
        "no_previous_phase",
        "parked_by_guard",
        "partition_changed",
        "partition_identity",
        "publication_changed",
        "publication_membership_changed",
        "schema_change_ambiguous",
        "schema_change_unsupported",
        "schema_version_missing",
        "segment_damaged",
        "segment_missing",
        "staging_file_missing",
        "table_not_published",
        "table_rewritten",
        "type_changed",
        "unknown_relation",
        "unknown_value",
        "value_out_of_range",
    }
)
"""Codes of errors that another copy resolves. One that is refused until a person has run SQL is tried again."""

_SAME_VALUE: Final = "a copy meets the same value"
_AT_SOURCE: Final = "a copy is refused as long as the source or the manifest is as it is"
_AT_DESTINATION: Final = "the cause is at the destination, and a retry continues where the table is"
_OTHERS: Final = "a copy would remove what another writer has written"

NOT_COPIED_AGAIN: Final[Mapping[str, str]] = {
    "ambiguous_columns": _AT_SOURCE,
    "copy_differs": "another copy may differ too, and that is an error of Levada",
    "destination_cascade": "a copy does not keep the foreign key from changing rows again",
    "destination_clock": "the clock is corrected, and the table is retried",
    "destination_collision": _AT_SOURCE,
    "destination_constraint": _AT_DESTINATION,
    "destination_dependents": _AT_DESTINATION,
    "destination_error": _AT_DESTINATION,
    "destination_limit": _AT_DESTINATION,
    "destination_loses_rows": "a copy would lose the rows again",
    "destination_table_missing": "the manifest may have another address than the tables",
    "excluded_column_renamed": "a copy could publish what is excluded",
    "foreign_column": _OTHERS,
    "foreign_schema_change": _OTHERS,
    "foreign_table_change": _OTHERS,
    "foreign_write": _OTHERS,
    "format_version_lowered": "a copy would make the table again with another format",
    "identity_missing": _AT_SOURCE,
    "internal_error": "the cause is not known",
    "partition_column_missing": _AT_SOURCE,
    "partition_foreign": _AT_SOURCE,
    "partition_name_taken": "the table could not be read during the copy",
    "partition_type_unsupported": _AT_SOURCE,
    "partition_unlogged": _AT_SOURCE,
    "partition_value_unrepresentable": _SAME_VALUE,
    "row_security": _AT_SOURCE,
    "rows_differ": "the rows that differ show the cause, and a copy would remove them",
    "schema_change_refused": "onSchemaChange is Fail",
    "select_privilege_missing": _AT_SOURCE,
    "source_changed": "slot.onLost decides, because the source may be a wrong one",
    "table_damaged": "the file can be restored, with the history of the table",
    "table_history_lost": _OTHERS,
    "table_renamed": _AT_SOURCE,
    "table_rolled_back": _OTHERS,
    "unrepresentable_value": _SAME_VALUE,
    "verify_unrepairable": "it is the end of a command, and the table is not parked",
    "version_exhausted": "the next transaction of this size would meet it again",
}
"""Codes of other errors of single tables, each with the reason why no copy is made without a person.

A table that missed changes for the time of such a cause at the source is copied as soon as that is gone.
"""


def copies_again(config: PipelineConfig, table: QualifiedTable, code: str, policy: RetryPolicy) -> bool:
    """Return True if a table that is parked with an error is copied again by itself, by what the manifest says.

    With the policy NO_RETRY it missed changes, so that only a copy resolves the error, whatever its code.
    """
    if code == "source_changed":
        return config.slot.resync_when_lost
    missed = policy is RetryPolicy.NO_RETRY
    return (missed or (policy is RetryPolicy.MANUAL_RETRY and code in COPIED_AGAIN)) and config.table(
        table
    ).resyncs_by_itself
