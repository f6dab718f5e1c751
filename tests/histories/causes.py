"""The codes with which a table may be parked, and the kinds of statements that can cause each."""

from __future__ import annotations

from typing import Final

from tests.histories.world import Form

_IDENTITY: Final = frozenset({
    "replica identity", "identity of partitions", "drop key", "add key", "replace key", "unique index", "drop index",
    "drop column", "drop and add column", "drop type", "not null", "attach partition", "create partition",
    "inheritance", "add generated column", "drop expression", "detach partition", "retype column",
    "partition in the place of one", "attach partition for a while", "detach partition for a while",
    "key of a new column", "key for a while", "table again", "table becomes partition",
})  # fmt: skip
"""Statements that can change what identifies a row."""
_PARTITION: Final = frozenset({
    "attach partition", "detach partition", "drop partition", "truncate partition", "create partition", "drop table",
    "widen column", "retype column", "rewrite", "truncate", "swap tables", "add computed column", "add identity column",
    "persistence", "domain", "drop expression", "add generated column", "detach partition for a while",
    "attach partition for a while", "partition in the place of one", "table becomes partition",
})  # fmt: skip
_VALUES: Final = frozenset({
    "retype column", "widen column", "add computed column", "add identity column", "drop expression", "domain",
    "persistence", "type", "key of a new column",
})  # fmt: skip
"""Statements that change values of rows which are there."""
_NAMES: Final = frozenset({
    "rename table", "swap tables", "create table", "create partitioned table", "set schema", "rename schema",
    "attach partition", "detach partition", "create partition", "detach partition for a while",
    "attach partition for a while", "partition in the place of one", "rename chain", "table again",
    "table becomes partition",
})  # fmt: skip
_COLUMNS: Final = frozenset({
    "add column", "add filled column", "add two columns", "drop column", "drop and add column", "rename column",
    "swap columns", "drop type", "add computed column", "add identity column", "retype column", "widen column",
    "key of a new column", "table again", "column again",
})  # fmt: skip
CAUSES: Final = {
    "table_rewritten": _VALUES | {"rewrite"},
    "schema_change_unsupported": _VALUES | {"drop and add column", "swap columns", "array default"},
    "schema_change_ambiguous": _COLUMNS | {"begin isolation"},
    "partition_changed": _PARTITION,
    "partition_identity": _IDENTITY,
    "partition_unlogged": frozenset({"persistence", "attach partition"}),
    "key_changed": _IDENTITY | {"rename column", "swap columns", "widen column"},
    "mode_changed": _IDENTITY,
    "table_not_published": _IDENTITY | {"persistence", "publication", "switch publication"} | {"leaves"},
    "publication_membership_changed": _IDENTITY | {"persistence", "publication"},
    "row_filter_changed": frozenset({"publication"}),
    "publication_changed": frozenset({"publication", "switch publication"}),
    "type_changed": frozenset({"type", "drop type", "retype column"}),
    "identity_missing": _IDENTITY | {"create table"},
    "destination_collision": _NAMES | {"create several tables"},
    "partition_column_missing": _COLUMNS | _NAMES,
    "partition_name_taken": _COLUMNS | _NAMES,
    "partition_type_unsupported": _VALUES,
    "partition_value_unrepresentable": frozenset({"insert", "insert many", "copy", "upsert", "update", "merge"}),
    "table_renamed": frozenset({"rename schema", "rename table", "set schema", "rename chain"}),
    "ambiguous_columns": _COLUMNS | {"create table", "create partitioned table", "inheritance"},
}
_WITHOUT_TRIGGER: Final = {
    "table_rewritten": frozenset({"truncate", "truncate partition", "persistence"}),
    # A rewrite keeps no trace of the constant that a column was added with.
    "schema_change_unsupported": frozenset({"rewrite"}),
}
"""Without the trigger, two kinds of statements between two readings of the catalog may look like another one."""
_MASKS: Final = {
    "mask_refused": _IDENTITY | {"mask", "retype column", "widen column"},
    "mask_comment_refused": frozenset({"mask"}),
    "key_changed": frozenset({"mask"}),
    "masked_column_renamed": frozenset({"rename column", "swap columns"}),
    "masked_column_retyped": frozenset({"retype column", "widen column", "type"}),
    "masked_column_missing": frozenset({"drop column", "drop and add column", "rename column", "swap columns"}),
}
"""Errors of masked columns."""
_STORED: Final = {
    "stored_type_refused": _VALUES | _COLUMNS,
    # Another column may have the name of a choice, with values that do not fit it.
    "unrepresentable_value": _VALUES | _COLUMNS,
}
"""Errors of columns whose types are chosen."""
_KEPT: Final = {
    "kept_rows_masked": frozenset({"mask"}),
    "kept_rows_replaced": _NAMES | {"drop table"},
    "kept_rows_unmovable": _VALUES | _COLUMNS | _IDENTITY,
}
"""Errors of rows that the source has deleted, and the lake keeps."""
CALM: Final = frozenset({"rename schema", "switch publication"})
"""Kinds that may park a table of which no statement changes more than rows."""


def explained(code: str, kinds: set[str], *, calm: bool, form: Form) -> bool:
    """Return True if statements of these kinds can park a table with this code in such a world."""
    causes = CAUSES.get(code, frozenset())
    if not form.trigger:
        causes |= _WITHOUT_TRIGGER.get(code, frozenset())
    if form.filtered and code == "row_filter_changed":
        return True
    if form.append and code == "publication_changed":
        causes |= _IDENTITY  # a table that loses or gets an identity moves from one publication to the other one
    if form.stored:
        causes |= _STORED.get(code, frozenset())
    if form.mark or form.keeps:
        causes |= _KEPT.get(code, frozenset())
    if form.masks:
        causes |= _MASKS.get(code, frozenset())
    return bool(causes & kinds & (CALM if calm else kinds))
