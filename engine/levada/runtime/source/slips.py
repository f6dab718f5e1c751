"""Entries of ``spec.tables`` that may be mistyped: they match no table, and replicated tables are left out.

A start is refused and a running engine keeps its tables, because the state of tables that are not selected any more is
deleted. `levada check` reports the same before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from levada.errors import NeedsOperator
from levada.postgres.catalog import list_tables
from levada.printable import listed
from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable


def check_slips(config: PipelineConfig, known: Collection[QualifiedTable]) -> None:
    """Raise the error of `require_no_slip` for the source's tables now, and the errors of the source."""
    if not known:
        return
    with config.source.connect(application="check") as connection:
        require_no_slip(config, list_tables(connection), known)


def require_no_slip(
    config: PipelineConfig, possible: Collection[QualifiedTable], known: Iterable[QualifiedTable]
) -> None:
    """Raise NeedsOperator ``pattern_without_table`` if a slip in ``spec.tables`` may have left out replicated tables.

    ``possible`` are the source's tables, and ``known`` those with a state, which would be forgotten. After the slip is
    corrected, all of them would be copied again.
    """
    lost = sorted(t for t in {*known}.intersection(possible) if not config.is_selected(t))
    if not lost:
        return
    for pattern in config.include:
        if not any(map(pattern.matches, possible)):
            raise NeedsOperator(
                "pattern_without_table",
                f"spec.tables.include has {pattern}, which matches no table that can be replicated, and replicated"
                f" tables are not selected any more: {listed(lost)}",
                hint="correct spec.tables. If these tables are not meant any more, remove the entry that matches none",
            )
