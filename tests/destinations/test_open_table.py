"""The class OpenTable in the JVM: what a commit costs, what it returns, and what it does if the catalog is silent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.destinations.lost_answers import lost_answers
from tests.destinations.memory import Stream
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations.groups import NewTable
from levada.destinations.iceberg.java import CommitUnknown
from levada.destinations.iceberg.metadata import TableMetadata
from levada.destinations.iceberg.table_reader import TableReader
from levada.schema import Kind, TableTarget
from levada.testing import column
from levada.testing.rows import ArrowRows
from levada.values import QualifiedTable, TableId, TableMode

_CALL = "c"
"""py4j's command for a call of a method. Others remove objects that Python no longer has."""
_REMOVE = "m"
"""py4j's command that removes an object which Python no longer has."""


@contextmanager
def counted_calls(lake: Lake) -> Iterator[Counter[str]]:
    """Count the commands that are sent to the JVM in the block, by their kind."""
    client, sent = lake.spark.sparkContext._gateway._gateway_client, Counter[str]()
    send = client.send_command

    def counted(command: str, *args: Any, **kwargs: Any) -> Any:
        sent[command.partition("\n")[0]] += 1
        return send(command, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "send_command", counted)
        yield sent


def test_a_batch_needs_two_calls_of_the_jvm(lake: Lake) -> None:
    """One reads what other writers have changed, and one commits."""
    destination = lake.destination()
    stream = copy(lake, destination)
    for i in range(3):
        stream.update(id=1, item=str(i), note=None)
        apply(lake, destination, stream)
    stream.update(id=1, item="A", note=None)
    stream.insert(id=9, item="new", note=None)
    with counted_calls(lake) as sent:
        apply(lake, destination, stream)
    assert sent[_CALL] == 2
    assert items(lake) == {1: "A", 2: "item 2", 3: "item 3", 9: "new"}


def test_calls_of_the_jvm_for_a_small_table(lake: Lake) -> None:
    """A copy in a group, and the first batch after it, need few calls, however many columns and properties there are.

    The table is not loaded again for the batch. It reads the files for the key index, which the copy leaves out.
    """
    destination = lake.destination()
    rows = [{"id": i, "item": f"item {i}", "note": None} for i in range(3)]
    calls: list[int] = []
    for n in range(3):
        schema = replace(ORDERS, id=TableId(17100 + n), name=QualifiedTable("public", f"small_{n}"))
        target, stream = TableTarget.of(schema, TableMode.UPSERT), Stream(schema, mode=TableMode.UPSERT)
        with counted_calls(lake) as sent:
            new = NewTable(target, ArrowRows.of(schema, rows))
            writer = destination.group_writer()
            assert writer.write([new], lake.mark(1000)) == [schema.id]
        with counted_calls(lake) as first:
            stream.update(id=1, item="x", note=None)
            apply(lake, destination, stream)
        calls = [sum(found.values()) - found[_REMOVE] for found in (sent, first)]
    assert calls == [19, 3]


def test_a_batch_waits_for_no_other_thread_of_the_jvm(lake: Lake) -> None:
    """Iceberg's own threads would be asked every 10 ms whether they are done, several times in a commit."""
    destination = lake.destination()
    stream = copy(lake, destination)
    java = lake.spark.sparkContext._jvm.java.lang
    beans, thread = java.management.ManagementFactory.getThreadMXBean(), java.Thread.currentThread().getId()

    def batch(n: int) -> int:
        stream.update(id=1, item=str(n), note=None)
        stream.insert(id=10 + n, item="new", note=None)
        before = int(beans.getThreadInfo(thread).getWaitedCount())
        apply(lake, destination, stream)
        return int(beans.getThreadInfo(thread).getWaitedCount()) - before

    batch(0)
    assert [batch(n) for n in (1, 2, 3)] == [0, 0, 0]
    assert items(lake)[1] == "3"


def test_differences_are_as_good_as_all_of_the_metadata(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata equals that of a whole read after batches, new columns, tags, expiry and foreign commits."""
    adopt, kinds = TableReader.adopt, Counter[bool]()

    def compared(self: TableReader, text: str) -> Any:
        result = adopt(self, text)
        whole = self._jvm.iceberg.TableMetadataParser.toJson(self._ops.current())
        assert self.metadata == TableMetadata.parse(json.loads(whole))
        kinds["changes" in result] += 1
        return result

    monkeypatch.setattr(TableReader, "adopt", compared)
    settings = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0}
    destination = lake.destination(maintenance=settings, retention=CURRENT_SNAPSHOT_ONLY)
    stream = copy(lake, destination)
    for i in range(3):
        stream.update(id=1, item=str(i), note=None)
        apply(lake, destination, stream)
    assert kinds[True] >= 3
    lake.sql("ALTER TABLE {t} CREATE TAG theirs")
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('theirs' = 'x')")
    stream.delete(id=2)
    apply(lake, destination, stream)
    lake.sql("ALTER TABLE {t} DROP TAG theirs")
    lake.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('theirs')")
    lake.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))")
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "more", Kind.INT4))))
    stream.insert(id=7, item="g", note=None, more=1)
    apply(lake, destination, stream)
    destination._known.states[ORDERS.id].maintained_at = -10.0
    destination.maintain(ORDERS.id)
    stream.insert(id=8, item="h", note=None, more=2)
    before = kinds[True]
    apply(lake, destination, stream)
    assert kinds[True] == before + 1
    assert items(lake) == {1: "2", 3: "item 3", 7: "g", 8: "h"}


def test_a_commit_of_unknown_fate_is_read_again(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """If the catalog does not confirm a commit, the table shows its fate: it counts once, or is an error."""
    destination = lake.destination()
    stream = copy(lake, destination)
    stream.insert(id=4, item="d", note=None)
    with lost_answers(destination, happens=True), caplog.at_level("WARNING"):
        apply(lake, destination, stream)
    assert "was not confirmed, but it succeeded" in caplog.text
    stream.insert(id=5, item="e", note=None)
    batch = stream.batch()
    with lost_answers(destination, happens=False), pytest.raises(CommitUnknown) as unknown:
        destination.write_events(batch, lake.mark(batch.until))
    assert unknown.value.code == "commit_unknown"
    assert "it is not known whether this succeeded: commit to shop_public.orders" in unknown.value.message
    destination = lake.destination()
    destination.write_events(batch, lake.mark(batch.until))
    assert sorted(items(lake)) == [1, 2, 3, 4, 5]
