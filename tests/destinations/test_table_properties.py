"""The table properties of the manifest: which may be set, how tables follow them, and that the files have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.destinations.orders import ORDERS, apply, copy, items, the_table
from tests.rigs.lake import Lake

from levada.destinations.data_files.storage import TARGET_BYTES, ParquetSettings
from levada.destinations.iceberg.maintenance import compact
from levada.destinations.iceberg.settings import Settings
from levada.destinations.iceberg.storage import parquet_settings
from levada.destinations.iceberg.table_properties import DEFAULTS, RECORD, changes

CATALOG = {"catalog": {"type": "Hadoop", "warehouse": "/lake"}}


def refused(**properties: str) -> str:
    """Return why a manifest is refused that sets these properties, with _ for a dot and __ for a dash."""
    named = {name.replace("__", "-").replace("_", "."): text for name, text in properties.items()}
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({**CATALOG, "tableProperties": named})
    (error,) = caught.value.errors()
    assert error["loc"] == ("tableProperties",)
    return error["msg"]


def test_what_a_manifest_must_not_set() -> None:
    """Properties of Levada, of the format, and those that nothing follows are refused, each with the reason."""
    for name in (
        "levada_mode",
        "format__version",
        "write_data_path",
        "write_delete_mode",
        "write_format_default",
        "write_parquet_row__group__size__bytes",
        "write_metadata_metrics_column_id",
        "write_object__storage_enabled",
        "commit_retry_num__retries",
        "history_expire_max__snapshot__age__ms",
        "gc_enabled",
        "engine_hive_lock__enabled",
        "Location",
        "EXTERNAL",
    ):
        assert "cannot be set" in refused(**{name: "1"})
    assert "cannot be set" in refused(**{"metadata_location".replace("_", "__"): "x", "levada_x": "1"})
    assert refused(write_parquet_compression__codec="lz4").endswith("must be zstd, gzip, snappy, uncompressed")
    assert "1 to 9 with gzip" in refused(write_parquet_compression__codec="gzip", write_parquet_compression__level="12")
    assert "no effect" in refused(write_parquet_compression__codec="snappy", write_parquet_compression__level="3")
    assert "1048576 to 1073741824" in refused(write_target__file__size__bytes="1")
    assert "10 to 1000" in refused(write_metadata_previous__versions__max="1")
    assert "must be" in refused(write_metadata_metrics_default="all")
    assert "printable" in refused(**{"\n": "1"})
    assert "printable" in refused(team="x" * 2000)


names = st.sampled_from(["a", "b", "write.metadata.previous-versions-max", "read.split.target-size"])
texts = st.sampled_from(["10", "20", "30"])
maps = st.dictionaries(names, texts)


@given(maps, maps, maps, maps)
def test_properties_follow_the_manifest(by_hand: dict[str, str], first: Any, change: Any, second: Any) -> None:
    """The table has the manifest's. Others stay, also one that was changed by hand after Levada had set it."""

    def after(table: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
        found = changes(wanted, table)
        left = {n: t for n, t in {**table, **found}.items() if t is not None}
        assert not changes(wanted, left)
        return left

    before = after({**DEFAULTS, **by_hand}, first)
    assert first.items() <= before.items()
    changed = {**before, **change}
    end = after(changed, second)
    assert second.items() <= end.items()
    for name in {*changed, *end} - {RECORD} - second.keys():
        ours = name in first and first[name] == changed.get(name)
        assert end.get(name) == (DEFAULTS.get(name) if ours else changed.get(name))
    assert (RECORD in end) == bool(second)


@given(st.text(), st.text(), st.text())
def test_any_text_by_hand_is_survived(codec: str, level: str, size: str) -> None:
    """A text that Levada does not support counts as not set."""
    named = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": level}
    found = parquet_settings({**named, "write.target-file-size-bytes": size})
    assert found.compression in ("zstd", "gzip", "snappy", "none")
    assert changes({}, {RECORD: codec}) in ({}, {RECORD: None})


def test_the_form_of_files() -> None:
    """Codec, level and size have their defaults, and the texts of the table. UUIDs have no bounds in Iceberg."""

    def settings(*form: Any) -> ParquetSettings:
        return ParquetSettings(*form, uuid_bounds=False)

    assert parquet_settings({}) == settings("zstd", None, TARGET_BYTES)
    named = {"write.parquet.compression-codec": "GZIP", "write.parquet.compression-level": "9"}
    assert parquet_settings({**named, "write.target-file-size-bytes": "2097152"}) == settings("gzip", 9, 2 << 20)
    assert parquet_settings({"write.parquet.compression-codec": "uncompressed"}) == settings("none")
    assert parquet_settings({"write.parquet.compression-codec": "brotli"}) == settings()
    assert parquet_settings({"write.parquet.compression-level": "23"}) == settings()


# -- on tables


def with_properties(lake: Lake, **properties: str) -> Lake:
    """Return the lake with these in the manifest, with _ for a dot and __ for a dash."""
    named = {name.replace("__", "-").replace("_", "."): text for name, text in properties.items()}
    return Lake({**lake.manifest, "tableProperties": named}, lake.context)


def codecs(lake: Lake) -> set[str]:
    """Return the codecs of the data and delete files that the table refers to."""
    found = set()
    for kind in ("files", "delete_files"):
        for row in lake.sql("SELECT file_path FROM {t}." + kind):
            path = str(row[0]).removeprefix("file:")
            found |= {pq.ParquetFile(path).metadata.row_group(0).column(i).compression for i in (0, 1)}
    return found


def test_files_have_the_codec(hadoop: Lake) -> None:
    """Copies, batches, delete files and compactions use the codec and level. After a change, new files have the new."""
    lake = with_properties(hadoop, write_parquet_compression__codec="gzip", write_parquet_compression__level="9")
    destination = lake.destination()
    stream = copy(lake, destination, n=20)
    stream.update(id=1, item="A", note=None)
    apply(lake, destination, stream)
    assert codecs(lake) == {"GZIP"}
    lake = with_properties(hadoop, write_parquet_compression__codec="snappy")
    destination = lake.destination()
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    for i in range(2, 12):
        stream.update(id=i, item=f"turn {i}", note=None)
        apply(lake, destination, stream)
    assert codecs(lake) == {"GZIP", "SNAPPY"}
    assert compact(the_table(destination), destination._tables.jvm)
    assert codecs(lake) == {"SNAPPY"}
    assert items(lake)[11] == "turn 11"
    properties = the_table(destination).metadata.properties
    assert "write.parquet.compression-level" not in properties


def test_files_have_the_size_and_bounds(hadoop: Lake) -> None:
    """A data file is closed at its target size, and metrics have the configured mode."""
    lake = with_properties(
        hadoop, write_target__file__size__bytes=str(1 << 20), write_metadata_metrics_default="counts"
    )
    destination = lake.destination()
    copy(lake, destination, n=3)
    assert the_table(destination).storage().parquet.target_bytes == 1 << 20
    (bounds,) = {(r[0] or {}).get(1) for r in lake.sql("SELECT lower_bounds FROM {t}.files")}
    assert bounds is None
    (counts,) = {bool((r[0] or {}).get(1)) for r in lake.sql("SELECT value_counts FROM {t}.files")}
    assert counts


def test_manifests_are_merged(hadoop: Lake) -> None:
    """Commits of Levada merge manifests from the configured number on."""
    lake = with_properties(hadoop, commit_manifest_min__count__to__merge="2")
    destination = lake.destination()
    stream = copy(lake, destination, n=3)
    for i in range(4, 12):
        stream.insert(id=i, item="new", note=None)
        apply(lake, destination, stream)
    assert len(lake.sql("SELECT path FROM {t}.manifests WHERE content = 0")) == 1


def test_compressed_metadata(hadoop: Lake, jdbc: Lake) -> None:
    """Tables with gzip metadata are read, written, checked and dropped."""
    for place in (hadoop, jdbc):
        lake = with_properties(place, write_metadata_compression__codec="gzip")
        destination = lake.destination()
        stream = copy(lake, destination, n=3)
        stream.update(id=1, item="A", note=None)
        apply(lake, destination, stream)
        assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken)
        assert {r["id"]: r["item"] for r in lake.by_spark().to_pylist()} == {1: "A", 2: "item 2", 3: "item 3"}
        stored = [
            p.name for p in Path(str(lake.manifest["catalog"]["warehouse"]).removeprefix("file:")).rglob("*.gz.*")
        ]
        assert any(name.endswith(".gz.metadata.json") for name in stored)
        destination.drop_table_for_copy(stream.target, 1)
        assert destination.applied(ORDERS.id) is None


def test_a_table_follows_the_manifest(lake: Lake) -> None:
    """At a restart, properties are set and removed. What was set by hand stays."""
    destination = with_properties(lake, team="a", read_split_target__size="1048576").destination()
    stream = copy(lake, destination)
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('mine' = '1', 'team' = 'by hand')")
    destination = with_properties(lake, team="a").destination()
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    properties = the_table(destination).metadata.properties
    assert properties["team"] == "a"
    assert properties["mine"] == "1"
    assert "read.split.target-size" not in properties
    destination = lake.destination()
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    properties = the_table(destination).metadata.properties
    assert "team" not in properties
    assert "mine" in properties
    assert RECORD not in properties
    stream.update(id=1, item="A", note=None)
    apply(lake, destination, stream)
    assert items(lake)[1] == "A"
