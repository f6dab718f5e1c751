"""The rules of a configuration made in Python: those of the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.recording import Recording

from levada.errors import NeedsOperator
from levada.postgres.connection import PostgresConnection
from levada.runtime.config import (
    CutSchedule,
    GuardLimit,
    PipelineConfig,
    PublicationConfig,
    RetryLimits,
    SlotConfig,
    StagingConfig,
    TableConfig,
    VerifyConfig,
)
from levada.runtime.config_rules import NUMBERS, TABLE_NUMBERS, TABLE_TEXT, TEXTS, Number, problems
from levada.runtime.pipeline import Pipeline
from levada.schema.masks import Mask, TableMasks
from levada.schema.stored_types import StoredTypes
from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest
from levada.spec.problems import bounds
from levada.spec.table_sync import TableSyncFields
from levada.status import GuardMeasure, GuardPolicy
from levada.stores import MemoryStore
from levada.values import MaskMethod, QualifiedTable

CONFIG = PipelineConfig(
    "shop", PostgresConnection("localhost", 5432, "shop"), SlotConfig("levada_shop"), PublicationConfig("levada_shop"),
    StagingConfig("/staging"), Path("/work"), cuts=CutSchedule(60.0, 3),
)  # fmt: skip

ELSEWHERE = {
    "TableSyncFields.mode", "TableSyncFields.on_unstreamable", "TableSyncFields.deletes",
    "TableCopy.mode", "TableCopy.where",
    "TableSyncFields.keyless", "Tables.metadata", "TableSyncFields.metadata",
    "TableSyncFields.on_partition_gone",
    "Columns.exclude", "Columns.mask", "Columns.types", "Mask.length",
    "Guard", "SizeLimits", "WalLimits", "WalPercentLimits", "PostgresServer.other_hosts",
}  # fmt: skip
"""Fields whose rule is in a function of its own."""

NOT_CONFIGURED = {
    "TableSelector": "PipelineConfig.selects is a function",
    "Tables": "PipelineConfig.selects is a function",
    "SecretRef": "a configuration has folders",
    "SecretKeyRef": "a configuration has folders",
    "PipelineRef": "a configuration has no references",
    "TableRef": "a QualifiedTable is any name",
    "Staging": "a relative folder is one of the process, and other kinds are refused when it is opened",
    "PipelineSpec.restart_nonce": "a program restarts itself",
    "Health.lag_probe_seconds": "the operator's",
    "TableCopy.executors": "the operator's",
    "Copy.except_for": "a selector of any names",
}
"""Fields and models of the manifest that no PipelineConfig has, each with the reason."""
OF_OTHERS = ("Driver", "Executor", "DeletionPolicy", "Destination", "Store", "Metadata", "Volume", "Resources", "Spark")
"""Parts of names of models that are the operator's, the destination's or the store's."""


def limited(model: type[Model], seen: set[type[Model]]) -> Iterator[tuple[type[Model], str]]:
    """Yield each field with a limit or a form, of the model and of those below it."""
    if model in seen or any(part in model.__name__ for part in OF_OTHERS if model.__name__ != "PipelineMetadata"):
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        if field.metadata and not all(type(m).__name__ in ("Strict", "BeforeValidator") for m in field.metadata):
            yield model, name
        for inner in models_in(field.annotation):
            yield from limited(inner, seen)


def models_in(annotation: Any) -> Iterator[type[Model]]:
    """Yield the models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def changed(path: str, value: object, config: Any = CONFIG) -> Any:
    """Return the configuration with another value at a path."""
    first, _, rest = path.partition(".")
    return replace(config, **{first: changed(rest, value, getattr(config, first)) if rest else value})


def broken(config: PipelineConfig) -> dict[str, str]:
    """Return the problem of each field that breaks a rule."""
    return dict(problems(config))


def test_each_rule_of_the_manifest_is_one_of_the_configuration() -> None:
    """A field of the manifest with a limit is compared, or is named with the reason why a configuration lacks it."""
    compared = {(n.model, n.field) for n in (*NUMBERS, *TABLE_NUMBERS, *TEXTS, TABLE_TEXT)}
    others = NOT_CONFIGURED.keys() | ELSEWHERE
    missing = [
        f"{model.__name__}.{name}"
        for root in (PipelineManifest, TableSyncFields)
        for model, name in limited(root, set())
        if not any((base, name) in compared for base in model.__mro__)
        and not {n for base in model.__mro__ for n in (f"{base.__name__}.{name}", base.__name__)} & others
    ]
    assert missing == []


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n.path)
def test_each_number_has_the_limits_of_the_manifest(number: Number) -> None:
    """Its lowest and highest values are valid. Those beyond them, and what is no number, are named."""
    (low, high), kind = number.limits, float if number.fraction else int
    delays = replace(CONFIG, retries=RetryLimits(delay_s=1e-9, max_delay_s=86400.0))
    config = delays if number.path.startswith("retries.") else CONFIG
    lowest = low or (1e-9 if number.fraction else 1) if number.positive else low
    for value in (lowest, *([] if high == inf else [high])):
        assert number.path not in broken(changed(number.path, kind(value), config))
    for wrong in (low - 1, "7", True, nan, None, *([] if high == inf else [high + 1])):
        assert number.path in broken(changed(number.path, wrong))
    assert (number.path in broken(changed(number.path, kind(0)))) is number.positive
    if not number.fraction:
        assert high == bounds(number.model, number.field)[1] + number.added
        assert number.path in broken(changed(number.path, 2.5))


def test_names_and_tables_have_the_forms_of_the_manifest() -> None:
    """Each field that breaks a rule is named with what it must be."""
    name = QualifiedTable("public", "orders")
    texts: dict[str, Any] = {
        "mode": "Upsert",
        "on_unstreamable": "Hold",
        "deletes": "Mark",
        "copy_mode": "None",
        "copy_where": 1,
        "keyless": "Append",
        "metadata": ("Lsn",),
        "on_partition_gone": "Keep",
        "verify": VerifyConfig(every_s=-1.0, sample=2.0),
    }
    table_config = TableConfig(retry_nonce=-1, destination_table="a/b", **texts)
    found = broken(
        replace(
            CONFIG, name="my_pipeline", slot=SlotConfig("Shop"), publication=PublicationConfig(""), maintenance_s=0,
            source=PostgresConnection("https://db", 5432, "shop", other_hosts=("a b",)), discovery_s=nan, batch_rows=0,
            memory_bytes=0, tables={name: table_config}, selects="orders", on_unrepresentable="Error",
            guard=(GuardLimit(GuardMeasure.RETAINED_WAL_PERCENT, GuardPolicy.WARN, 101),), guard_patience_s=-1,
            largest_own_copy=-1,
        )
    )  # fmt: skip
    assert found.keys() == {
        "name", "slot.name", "publication.name", "source.host", "source.other_hosts[0]", "maintenance_s", "discovery_s",
        "batch_rows", "memory_bytes", "guard[0].value", "guard_patience_s", "selects", "on_unrepresentable",
        "largest_own_copy",
        "tables[public.orders].retry_nonce", "tables[public.orders].destination_table", "tables[public.orders].mode",
        "tables[public.orders].on_unstreamable", "tables[public.orders].deletes",
        "tables[public.orders].copy_mode", "tables[public.orders].copy_where",
        "tables[public.orders].keyless", "tables[public.orders].metadata",
        "tables[public.orders].on_partition_gone", "tables[public.orders].verify.every_s",
        "tables[public.orders].verify.sample",
    }  # fmt: skip
    assert found["name"] == "must consist of a-z, 0-9 and -, and begin and end with a letter or digit"
    assert found["publication.name"] == "must not be empty"
    assert found["guard[0].value"] == "must be at least 1 and at most 100"
    assert all(problem.startswith("must ") for problem in found.values())


def test_settings_that_would_be_ignored_are_refused() -> None:
    """A key that is no table, letters as excluded columns, and texts for members, True and False mean nothing."""
    text: Any = "secret"
    name = QualifiedTable("public", "orders")
    found = broken(
        replace(
            CONFIG, tables={text: TableConfig(), name: TableConfig(excluded_columns=text)}, work_dir=text,
            default_table=text, guard=(GuardLimit(text, text, 1),), ddl_trigger=text,
            slot=SlotConfig("levada_shop", failover=text, resync_when_lost=text),
            publication=PublicationConfig("levada_shop", managed=text),
        )
    )  # fmt: skip
    assert found.keys() == {
        "tables[secret]", "tables[public.orders].excluded_columns", "work_dir", "default_table", "guard[0]",
        "ddl_trigger", "slot.failover", "slot.resync_when_lost", "publication.managed",
    }  # fmt: skip
    assert broken(replace(CONFIG, default_table=TableConfig(excluded_columns=frozenset({"a"})))) == {}


def test_a_column_has_a_mask_or_a_stored_type() -> None:
    """Both would say which type its values have."""
    masks = TableMasks.of({"card": Mask(MaskMethod.LAST, 4)})
    other = TableConfig(stored_types=StoredTypes.of({"n": "Text"}), masks=masks)
    assert broken(replace(CONFIG, default_table=other)) == {}
    both = TableConfig(stored_types=StoredTypes.of({"n": "Text", "card": "Text"}), masks=masks)
    assert broken(replace(CONFIG, default_table=both)).keys() == {"default_table.masks"}


@pytest.mark.parametrize(("length", "refused"), [(0, True), (1, False), (1_000_000, False), (1_000_001, True)])
def test_a_mask_keeps_as_many_characters_as_the_manifest_allows(length: int, refused: bool) -> None:
    """The last 0 characters would be the whole text."""
    masks = TableMasks.of({"card": Mask(MaskMethod.LAST, length)})
    assert ("default_table.masks" in broken(replace(CONFIG, default_table=TableConfig(masks=masks)))) is refused


@pytest.mark.parametrize(("name", "refused"), [("Text", False), ("Decimal(38, 9)", False), ("Decimal(39, 9)", True)])
def test_a_type_is_one_of_those_that_the_manifest_allows(name: str, refused: bool) -> None:
    """Another name would be refused only when the table is copied."""
    types = StoredTypes.of({"price": name})
    found = broken(replace(CONFIG, default_table=TableConfig(stored_types=types)))
    assert ("default_table.stored_types" in found) is refused


def test_no_field_is_left_unseen() -> None:
    """A field that comes new is compared, or needs no rule."""
    free = {
        "include", "exclude", "ddl_trigger", "copies_depend_on", "destination_place", "uid",
        "take_over_from", "limits", "staging", "copied_otherwise", "mask_keys", "mask_comments",
    }  # fmt: skip
    paths = {path.split(".")[0] for path in (n.path for n in (*NUMBERS, *TEXTS))}
    own = {
        "memory_bytes", "batch_rows", "discovery_s", "maintenance_s", "guard", "guard_patience_s", "selects",
        "on_unrepresentable", "tables", "default_table", "work_dir", "largest_own_copy",
    }  # fmt: skip
    assert is_dataclass(CONFIG)
    assert {f.name for f in fields(CONFIG)} == free | paths | own


def test_a_pipeline_refuses_what_breaks_a_rule(rig: Rig) -> None:
    """It is refused before anything begins, with each field, and a running pipeline keeps its configuration."""
    with pytest.raises(NeedsOperator) as refused:
        Pipeline(
            replace(rig.config, name="my_pipeline", copy_tables=0), store=MemoryStore("x"), destination=Recording()
        )
    assert refused.value.code == "config_invalid"
    assert "has 2 problems: copy_tables must be at least 1 and at most 64; name must" in refused.value.message
    pipeline = Pipeline(rig.config, store=rig.store(), destination=rig.destination)
    with pytest.raises(NeedsOperator, match="maintenance_s must be above 0"):
        pipeline.reconfigure(replace(rig.config, maintenance_s=0.0))
    assert pipeline.config is rig.config


def test_an_error_of_the_selection_is_shown_and_passes(rig: Rig, db: Database) -> None:
    """A selection that raises, or returns no bool, finds no new table. The others go on, and it is in the progress."""
    rig.change(discovery_s=0.1)
    rig.start()
    rig.wait_caught_up()
    good, answer = rig.config.selects, "raise"

    def bad(name: QualifiedTable) -> bool:
        if name.name != "others":
            return good(name)
        if answer == "raise":
            raise ValueError("no such rule")
        return None  # type: ignore[return-value]  # as a function that forgot to return

    rig.change(selects=bad)
    shown = rig.wait(lambda p: p.publication.error is not None).publication.error
    assert shown is not None
    assert shown.code == "selects_failed"
    assert "raised ValueError: no such rule for table public.others" in shown.reason
    db.execute("INSERT INTO orders VALUES (11)")
    rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    answer = "forget"
    rig.wait(lambda p: p.publication.error is not None and "returned a NoneType" in p.publication.error.reason)
    rig.change(selects=lambda name: good(name) or name.name == "others")
    rig.wait(lambda p: p.publication.error is None and len(p.tables) == 3 and table(p, "others").phase == "Ready")
