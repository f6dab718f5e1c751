"""A reference to the current configuration, which a running engine reads so that a change needs no restart."""

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
    "memory_bytes",
    "on_unrepresentable",
    "copies_depend_on",
)
"""The fields that a running pipeline cannot change."""


class ConfigRef:
    """Holds the current configuration, which is replaced as a whole. Any thread may read it at any time."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    @property
    def current(self) -> PipelineConfig:
        """Return the current configuration."""
        return self._config

    def replace(self, config: PipelineConfig) -> None:
        """Replace the configuration. Raise ValueError if a field in `FIXED` differs."""
        require_same(self._config, config)
        self._config = config

    def selects(self, table: QualifiedTable) -> bool:
        """Return True if the current configuration selects the table."""
        return self._config.is_selected(table)


def require_same(old: PipelineConfig, new: PipelineConfig) -> None:
    """Raise ValueError if the two differ in a field that a running pipeline cannot change, see `FIXED`."""
    changed = [name for name in FIXED if getattr(old, name) != getattr(new, name)]
    if changed:
        raise ValueError(f"a running pipeline cannot change {', '.join(changed)}")
