"""Folding, against a dictionary that lives through the same transactions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.row_streams import KEYS, NUMBERS, TEXTS, Row, Stream, as_table, table

from levada.destinations.fold import Folded, fold
from levada.destinations.keys import KeyEncoder, Keys
from levada.errors import NeedsOperator
from levada.schema import IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.changes import UNCHANGED, change_schema


def numbers(keys: Keys) -> list[tuple[int, ...]]:
    """The keys as tuples of Python integers."""
    return list(zip(*([int(x) for x in p] for p in (keys.high, keys.low) if p is not None), strict=True))


def apply(folded: Folded, schema: ReplicatedTableSchema, base: dict[Row, Row]) -> dict[Row, Row]:
    """Do at a destination that holds ``base`` what a fold asks for."""
    width = len(schema.key)
    rows = list(base.values())
    by_key = dict(zip(numbers(KeyEncoder(schema, SEED).encode(as_table(schema, rows))), rows, strict=True))
    if folded.partial_rows is not None:
        held = as_table(schema, [by_key[k] for k in numbers(folded.partial_rows.former_keys)])
    else:
        held = as_table(schema, [])
    upserts = folded.complete(held)
    upserts.validate(full=True)
    assert upserts.schema == schema.arrow
    assert numbers(KeyEncoder(schema, SEED).encode(upserts)) == numbers(folded.keys)
    touched = numbers(folded.affected_keys)
    assert len(set(touched)) == len(touched)
    for k in touched:
        by_key.pop(k, None)
    for k, row in zip(numbers(folded.keys), upserts.to_pylist(), strict=True):
        assert k not in by_key
        by_key[k] = tuple(row.values())
    return {row[:width]: row for row in by_key.values()}


SEED = bytes(32)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Stream, dict[Row, Row]]:
    """Draw a table, what a destination holds of it, and transactions that follow."""
    kinds = draw(st.sampled_from(list(KEYS)))
    domain = KEYS[kinds]
    payload = st.tuples(NUMBERS, TEXTS, TEXTS)
    base = {k: k + draw(payload) for k in draw(st.lists(st.sampled_from(domain), unique=True))}
    stream = Stream(table(*kinds), dict(base))
    fancy = draw(st.booleans())
    for _ in range(draw(st.integers(0, 25))):
        free = [k for k in domain if k not in stream.held]
        step = draw(st.sampled_from("IUUUDC" + "T" * draw(st.booleans())))
        if step == "C":
            stream.commit()
        elif step == "T":
            stream.truncate()
        elif step == "I" and free:
            stream.insert(draw(st.sampled_from(free)) + draw(payload))
        elif step == "D" and stream.held:
            stream.delete(draw(st.sampled_from(sorted(stream.held))), draw(st.sampled_from("KO")))
        elif step == "U" and stream.held:
            key = draw(st.sampled_from(sorted(stream.held)))
            new = draw(st.sampled_from([key, *free])) if fancy else key
            row = new + draw(payload)
            old, width = stream.held[key], stream.width
            unchanged = []
            if fancy:
                unchanged = draw(st.lists(st.sampled_from([width + 1, width + 2]), unique=True))
                row = tuple(old[i] if i in unchanged else v for i, v in enumerate(row))
            kind = draw(st.sampled_from("KO")) if new != key else draw(st.sampled_from(["", "K", "O"])) if fancy else ""
            if kind and new == key and draw(st.booleans()):
                unchanged.append(width - 1)  # a TOASTed column of the key: its value is in the old image alone
            stream.update(key, row, unchanged, kind)
    return stream, base


@settings(max_examples=300)
@given(streams(), st.data())
def test_fold_is_what_the_transactions_did(drawn: tuple[Stream, dict[Row, Row]], data: st.DataObject) -> None:
    """A fold, applied to a destination's rows, makes the source's rows. Chunks and their order have no effect."""
    stream, base = drawn
    changes = stream.table()
    if stream.truncated:
        base = {}
    if data.draw(st.booleans()) and len(changes):
        changes = changes.take(data.draw(st.permutations(range(len(changes)))))
    cut = data.draw(st.integers(0, len(changes)))
    changes = pa.concat_tables([changes.slice(cut), changes.slice(0, cut)])
    everything = tuple(c.attnum for c in stream.schema.columns)
    full = replace(stream.schema, identity=IdentityKind.FULL, identity_attnums=everything)
    newest = data.draw(st.sampled_from([stream.schema, full]), "the replica identity after the changes")
    folded = fold(changes, newest, SEED, truncated_before=stream.truncated)
    assert apply(folded, stream.schema, base) == stream.held
    if stream.truncated:
        assert folded.partial_rows is None
    # A destination that has all of it already: doing it again changes nothing, where nothing is unknown.
    if folded.partial_rows is None:
        assert apply(folded, stream.schema, stream.held) == stream.held


@pytest.fixture
def stream() -> Stream:
    """Three rows held, nothing sent yet."""
    rows = [(1, 10, "one", "uno"), (2, 20, "two", "due"), (3, 30, "three", "tre")]
    return Stream(table(Kind.INT8), {r[:1]: r for r in rows})


def test_keys_swap_through_a_temporary_one(stream: Stream) -> None:
    """Two rows that change places keep each its own unknown values."""
    base = dict(stream.held)
    stream.update((1,), (9, 10, "one", "uno"), [2, 3], "K")
    stream.update((2,), (1, 20, "two", "due"), [2, 3], "K")
    stream.update((9,), (2, 10, "one", "uno"), [2, 3], "K")
    folded = fold(stream.table(), stream.schema, SEED)
    assert folded.partial_rows is not None
    assert numbers(folded.partial_rows.former_keys) == [(2,), (1,)]
    assert sorted(numbers(folded.affected_keys)) == [(1,), (2,), (9,)]
    assert apply(folded, stream.schema, base) == stream.held


def test_deleted_and_inserted_again_is_another_row(stream: Stream) -> None:
    """An unknown value after the second insert is that of the inserted row, not of the deleted one."""
    stream.delete((1,))
    stream.insert((1, 0, "new", "nuovo"))
    stream.update((1,), (1, 5, "new", "nuovo"), [2])
    folded = fold(stream.table(), stream.schema, SEED)
    assert folded.partial_rows is None
    assert folded.upserts.to_pylist() == [{"k0": 1, "n": 5, "t": "new", "u": "nuovo"}]


def test_long_chain_is_resolved(stream: Stream) -> None:
    """A thousand updates of one row that leave a text unknown end at the row that the destination holds."""
    base = dict(stream.held)
    for i in range(1000):
        stream.update((1,), (1, i, "one", "uno"), [2])
    folded = fold(stream.table(), stream.schema, SEED)
    assert folded.partial_rows is not None
    assert list(folded.partial_rows.columns) == ["t"]
    assert apply(folded, stream.schema, base) == stream.held


def test_the_column_of_a_lost_row_is_named(stream: Stream) -> None:
    """Of two rows with unknown values, the one that the destination lacks decides which column is reported."""
    stream.update((1,), (1, 5, "one", "uno"), [2])
    stream.update((2,), (2, 5, "two", "due"), [3])
    partial = fold(stream.table(), stream.schema, SEED).partial_rows
    assert partial is not None
    assert [partial.column_of(np.array(lost)) for lost in ([True, False], [False, True])] == ["t", "u"]


def test_unknown_value_is_an_error(stream: Stream) -> None:
    """An INSERT with an unknown value, as a row filter can make of an UPDATE, is refused and never NULL."""
    stream.send("I", (7, 1, None, "x"), [2])
    with pytest.raises(NeedsOperator) as e:
        fold(stream.table(), stream.schema, SEED)
    assert e.value.code == "unknown_value"


def test_unknown_after_removal_is_an_error(stream: Stream) -> None:
    """A value of a row that the batch itself removed before is not asked of the destination."""
    stream.delete((1,))
    stream.send("U", (1, 1, None, "x"), [2])
    with pytest.raises(NeedsOperator) as e:
        fold(stream.table(), stream.schema, SEED)
    assert e.value.code == "unknown_value"


def test_unknown_key_is_an_error(stream: Stream) -> None:
    """A key that is TOASTed and in no old image names no row."""
    stream.send("U", (1, 1, "one", "uno"), [0])
    with pytest.raises(NeedsOperator) as e:
        fold(stream.table(), stream.schema, SEED)
    assert e.value.code == "unknown_value"


def test_columns_dropped_since_are_passed_over(stream: Stream) -> None:
    """An unknown value of a column that the schema no longer has changes nothing."""
    stream.update((1,), (1, 1, "one", "uno"))
    stream.changes[-1][UNCHANGED] = [99]
    folded = fold(stream.table(), stream.schema, SEED)
    assert folded.partial_rows is None
    assert folded.upserts.num_rows == 1


def test_no_changes_come_to_nothing(stream: Stream) -> None:
    """An empty batch, in every layout, touches nothing."""
    for optional in (False, True):
        layout = change_schema(stream.schema, old=optional, unchanged=optional, unrepresentable=optional)
        folded = fold(layout.empty_table(), stream.schema, SEED)
        assert folded.upserts.num_rows == len(folded.affected_keys) == len(folded.keys) == 0
        assert folded.upserts.schema == stream.schema.arrow


def test_upserts_keep_the_order_of_the_log(stream: Stream) -> None:
    """Rows come in the order of their last changes, and their keys in the same order."""
    for k in np.random.default_rng(1).permutation(200) + 10:
        stream.insert((int(k), 0, "", ""))
    folded = fold(stream.table(), stream.schema, SEED)
    assert folded.upserts.column("k0").to_pylist() == [c["k0"] for c in stream.changes]
    assert [k for (k,) in numbers(folded.keys)] == [c["k0"] for c in stream.changes]
