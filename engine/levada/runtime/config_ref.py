"""The configuration as it holds now: what a running engine reads it from, so that a change needs no restart."""

from __future__ import annotations

from typing import Final

from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable

FIXED: Final = (
    "name",
    "source",
    "slot",
    "publication",
    "staging",
    "work_dir",
    "apply_threads",
    "on_unrepresentable",
    "copies_depend_on",
)
"""What a running pipeline cannot change of its configuration."""


class ConfigRef:
    """Holds one configuration, replaced as a whole; any thread may read it at any time.

    A table that is there keeps its columns until it is copied again: `columns` are changed by the supervisor alone.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self.columns: dict[QualifiedTable, frozenset[str]] = {}
        """The columns that tables leave out as they are."""

    @property
    def current(self) -> PipelineConfig:
        """Return the configuration that holds now."""
        return self._config

    def replace(self, config: PipelineConfig) -> None:
        """Let another configuration hold from now on; raise ValueError if that takes another pipeline."""
        require_same(self._config, config)
        self._config = config

    def selects(self, table: QualifiedTable) -> bool:
        """Tell whether a table is replicated now."""
        return self._config.selects(table)

    def excluded_columns(self, table: QualifiedTable) -> frozenset[str]:
        """Return the columns that are left out of a table as it is, or as it will be if it is not there yet."""
        kept = self.columns.get(table)
        return self._config.table(table).excluded_columns if kept is None else kept


def require_same(old: PipelineConfig, new: PipelineConfig) -> None:
    """Raise ValueError if the two differ in what a running pipeline cannot change."""
    changed = [name for name in FIXED if getattr(old, name) != getattr(new, name)]
    if changed:
        raise ValueError(f"a running pipeline cannot change {', '.join(changed)}")
