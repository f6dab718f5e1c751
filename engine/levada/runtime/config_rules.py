"""The rules of a pipeline's configuration: those of the manifest's fields, and of what no manifest sets. Pure.

The manifest's models define each limit. The configuration has other units, and times in it may be fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

from levada.errors import NeedsOperator
from levada.runtime.config import PipelineConfig, TableConfig, VerifyConfig
from levada.schema.masks import TableMasks
from levada.schema.stored_types import StoredTypes
from levada.spec.columns import SHORTENING, Columns
from levada.spec.columns import Mask as MaskSpec
from levada.spec.guard import WalPercentLimits
from levada.spec.model import Model
from levada.spec.pipeline import PipelineMetadata, PipelineSpec
from levada.spec.problems import bounds, value_problem
from levada.spec.running import Apply, Batch, Continuous, Copy, Cuts, Health, Retries, Verify
from levada.spec.source import Keepalive, PostgresServer, Publication, Slot, Source
from levada.spec.table_sync import TableSyncFields
from levada.status import GuardMeasure, GuardPolicy
from levada.values import (
    CopyMode,
    Deletes,
    Keyless,
    MetadataColumn,
    OnPartitionGone,
    OnUnrepresentable,
    OnUnstreamable,
    QualifiedTable,
    TableMode,
)

Least = Literal["manifest", "positive"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the configuration with the field of the manifest that has its limits.

    ``unit`` is one of the manifest's units in the configuration, and ``added`` is added to it. With ``fraction``, the
    number may be a fraction, and be as small as wanted above 0. With the ``least`` positive, 0 is refused although the
    manifest has it, because it means something else there.
    """

    path: str
    model: type[Model]
    field: str
    unit: float = 1
    added: int = 0
    fraction: bool = False
    least: Least = "manifest"

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest value. A lowest one of 0 is refused if the number must be ``positive``."""
        low, high = bounds(self.model, self.field)
        return 0 if self.fraction else low * self.unit + self.added, high * self.unit + self.added

    @property
    def positive(self) -> bool:
        """True if 0 is refused."""
        return self.least == "positive" or bounds(self.model, self.field)[0] * self.unit + self.added > 0

    def problem(self, value: object) -> str:
        """Return what the value must be, an empty string if it is that."""
        low, high = self.limits
        return number_problem(value, low, high, fraction=self.fraction, positive=self.positive)


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the configuration with the field of the manifest that has its form. ``optional`` allows none."""

    path: str
    model: type[Model]
    field: str
    optional: bool = False


NUMBERS: Final = (
    Number("source.port", PostgresServer, "port"),
    Number("source.keepalives.idle_s", Keepalive, "idle_seconds"),
    Number("source.keepalives.interval_s", Keepalive, "interval_seconds"),
    Number("source.keepalives.count", Keepalive, "count"),
    Number("copy_tables", Copy, "max_concurrent_tables"),
    Number("copy_connections", Copy, "connections_per_table"),
    Number("apply_threads", Apply, "max_concurrent_tables", least="positive"),
    Number("batch_bytes", Batch, "max_bytes"),
    Number("batch_fill_s", Batch, "max_fill_ms", unit=0.001, fraction=True),
    Number("freshness_s", PipelineSpec, "freshness_seconds", fraction=True),
    Number("heartbeat_s", Source, "heartbeat_seconds", fraction=True),
    Number("progress_deadline_s", Health, "progress_deadline_seconds", fraction=True),
    Number("retries.max_attempts", Retries, "max_attempts", added=1),
    Number("retries.delay_s", Retries, "delay_seconds", fraction=True),
    Number("retries.max_delay_s", Retries, "max_delay_seconds", fraction=True),
    Number("verify.every_s", Verify, "every_hours", unit=3600, fraction=True),
    Number("verify.sample", Verify, "sample_percent", unit=0.01, fraction=True),
    Number("verify.continuous.every_s", Continuous, "every_hours", unit=3600, fraction=True),
    Number("verify.continuous.source_load", Continuous, "max_source_load_percent", unit=0.01, fraction=True),
    Number("cuts.every_s", Cuts, "every_seconds", fraction=True, least="positive"),
    Number("cuts.keep", Cuts, "keep"),
)
VERIFY_NUMBERS: Final = tuple(number for number in NUMBERS if number.path.startswith("verify."))
"""Those that a table may have of its own."""
TEXTS: Final = (
    Text("name", PipelineMetadata, "name"),
    Text("namespace", PipelineMetadata, "namespace", optional=True),
    Text("source.host", PostgresServer, "host"),
    Text("source.database", PostgresServer, "database"),
    Text("slot.name", Slot, "name"),
    Text("publication.name", Publication, "name"),
)
TABLE_NUMBERS: Final = tuple(
    Number(name, TableSyncFields, name) for name in ("resync_nonce", "retry_nonce", "verify_nonce")
)
TABLE_TEXT: Final = Text("destination_table", TableSyncFields, "destination_table", optional=True)
_OWN: Final = (("memory_bytes", False), ("batch_rows", False), ("discovery_s", True), ("maintenance_s", True))
"""Numbers above 0 that no manifest limits, each with True if it may be a fraction."""
_FLAGS: Final = (
    "ddl_trigger",
    "slot.failover",
    "slot.resync_when_lost",
    "slot.compare_when_lost",
    "publication.managed",
)
"""Fields that are True or False. Any other value would count as one of them."""


def require_valid(config: PipelineConfig) -> None:
    """Raise NeedsOperator ``config_invalid``, which lists every field that breaks a rule."""
    if not isinstance(config, PipelineConfig):
        # A program without types may give anything.
        raise NeedsOperator(
            "config_invalid", f"not a PipelineConfig: {config!r}", hint="make one: levada.PipelineConfig(...)"
        )
    found = [f"{path} {problem}" for path, problem in problems(config)]
    if found:
        raise NeedsOperator(
            "config_invalid",
            f"the configuration of pipeline {config.name!r} has {len(found)} problems: {'; '.join(found)}",
            hint="correct these fields of PipelineConfig: help(levada.PipelineConfig) describes them",
        )


def problems(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Yield the path of each field that breaks a rule, and what it must be."""
    for number in NUMBERS:
        if config.cuts is None and number.path.startswith("cuts."):
            continue
        if problem := number.problem(_value(config, number.path)):
            yield number.path, problem
    for text in TEXTS:
        if problem := _text_problem(text, _value(config, text.path)):
            yield text.path, problem
    for path, fraction in _OWN:
        if problem := number_problem(getattr(config, path), 0 if fraction else 1, float("inf"), fraction=fraction):
            yield path, problem
    if problem := number_problem(config.guard_patience_s, 0, float("inf"), fraction=True, positive=False):
        yield "guard_patience_s", problem
    most = config.largest_own_copy
    if most is not None and (problem := number_problem(most, 0, float("inf"), fraction=False, positive=False)):
        yield "largest_own_copy", problem
    yield from _other_problems(config)
    named = ((f"tables[{table}]", its) for table, its in config.tables.items())
    for name, table in (("default_table", config.default_table), *named):
        for field, problem in _table_problems(table):
            yield f"{name}{field}", problem
    for key in config.tables:
        # Any other key would be no table, and its settings would be ignored.
        if not isinstance(key, QualifiedTable):
            yield f"tables[{key}]", "must have a QualifiedTable as its key"


def number_problem(value: object, low: float, high: float, *, fraction: bool, positive: bool = True) -> str:
    """Return what a number must be, an empty string if it is that."""
    if not _is_number(value) or (isinstance(value, float) and not fraction):
        return "must be a number" if fraction else "must be a whole number"
    assert isinstance(value, int | float)
    if not isfinite(value) or value < low or value > high or (positive and value <= 0):
        least = "above 0" if positive and low <= 0 else f"at least {low:g}"
        return f"must be {least}" if high == float("inf") else f"must be {least} and at most {high:g}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(config: PipelineConfig, path: str) -> Any:
    return _getter(path)(config)


@cache
def _getter(path: str) -> Callable[[object], Any]:
    return attrgetter(path)


def _text_problem(text: Text, value: object) -> str:
    if not isinstance(value, str):
        return "must be a string"
    if not value:
        return "" if text.optional else "must not be empty"
    return value_problem(text.model, text.field, value)


def _other_problems(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    for index, host in enumerate(config.source.other_hosts):
        if problem := value_problem(PostgresServer, "host", host):
            yield f"source.other_hosts[{index}]", problem
    shortest, longest = config.retries.delay_s, config.retries.max_delay_s
    if _is_number(shortest) and _is_number(longest) and longest < shortest:
        yield "retries.max_delay_s", "must not be below delay_s"
    percent = bounds(WalPercentLimits, "warn")[1]
    for index, limit in enumerate(config.guard):
        if not (isinstance(limit.measure, GuardMeasure) and isinstance(limit.policy, GuardPolicy)):
            yield f"guard[{index}]", "must have a member of GuardMeasure and one of GuardPolicy"
        high = percent if limit.measure is GuardMeasure.RETAINED_WAL_PERCENT else float("inf")
        if problem := number_problem(limit.value, 1, high, fraction=False):
            yield f"guard[{index}].value", problem
    for path in _FLAGS:
        if not isinstance(_value(config, path), bool):
            yield path, "must be True or False"
    if not isinstance(config.work_dir, Path):
        yield "work_dir", "must be a pathlib.Path"
    if not callable(config.selects):
        yield "selects", "must be a function of a QualifiedTable"
    if not isinstance(config.on_unrepresentable, OnUnrepresentable):
        yield "on_unrepresentable", "must be a member of levada.OnUnrepresentable"


def _mask_problem(masks: TableMasks) -> str:
    """Return what masks must be, an empty string if they are that."""
    if problem := value_problem(Columns, "exclude", tuple(masks.names)):
        return problem
    for name, mask in masks.entries:
        # The last 0 characters would be all of them.
        if mask.method in SHORTENING and (problem := value_problem(MaskSpec, "length", mask.length)):
            return f"of {name} has a length that {problem}"
    return ""


def _table_problems(table: object) -> Iterator[tuple[str, str]]:
    """Yield the problems of a table's settings, each with its path below them."""
    if not isinstance(table, TableConfig):
        yield "", "must be a TableConfig"
        return
    for number in TABLE_NUMBERS:
        if problem := number.problem(getattr(table, number.path)):
            yield f".{number.path}", problem
    if problem := _text_problem(TABLE_TEXT, table.destination_table):
        yield f".{TABLE_TEXT.path}", problem
    # The letters of a string would be columns, and the one that it names would be replicated.
    if not isinstance(table.excluded_columns, frozenset):
        yield ".excluded_columns", "must be a frozenset of names"
    elif problem := value_problem(Columns, "exclude", tuple(table.excluded_columns)):
        yield ".excluded_columns", problem
    if not isinstance(table.stored_types, StoredTypes):
        yield ".stored_types", "must be StoredTypes"
    elif problem := value_problem(Columns, "types", dict(table.stored_types.chosen)):
        yield ".stored_types", problem
    if not isinstance(table.masks, TableMasks):
        yield ".masks", "must be a TableMasks"
    elif problem := _mask_problem(table.masks):
        yield ".masks", problem
    elif isinstance(table.stored_types, StoredTypes) and table.masks.names & dict(table.stored_types.chosen).keys():
        yield ".masks", "must have no column of stored_types, because a mask decides the type of its values"
    if not isinstance(table.mode, TableMode):
        yield ".mode", "must be a member of levada.TableMode"
    if not isinstance(table.deletes, Deletes):
        yield ".deletes", "must be a member of levada.Deletes"
    if not isinstance(table.metadata, tuple) or not all(isinstance(one, MetadataColumn) for one in table.metadata):
        yield ".metadata", "must be a tuple of members of levada.MetadataColumn"
    if not isinstance(table.keyless, Keyless):
        yield ".keyless", "must be a member of levada.Keyless"
    if not isinstance(table.copy_mode, CopyMode):
        yield ".copy_mode", "must be a member of levada.CopyMode"
    if not isinstance(table.copy_where, str):
        yield ".copy_where", "must be a string"
    elif table.copy_where and table.copy_mode is CopyMode.NONE:
        yield ".copy_where", "must be empty with CopyMode.NONE"
    if not isinstance(table.on_partition_gone, OnPartitionGone):
        yield ".on_partition_gone", "must be a member of levada.OnPartitionGone"
    if not isinstance(table.verify, VerifyConfig | None):
        yield ".verify", "must be a VerifyConfig, or None"
    elif table.verify is not None:
        for number in VERIFY_NUMBERS:
            if problem := number.problem(attrgetter(number.path.removeprefix("verify."))(table.verify)):
                yield f".{number.path}", problem
    if not isinstance(table.on_unstreamable, OnUnstreamable | None):
        yield ".on_unstreamable", "must be a member of levada.OnUnstreamable, or None"
