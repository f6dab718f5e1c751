"""Histories of a table that are still Levada's own: every kind of foreign commit, with and without expiry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.destinations.iceberg.lineage import Verdict, judge
from levada.destinations.iceberg.metadata import LastCommit, Snapshot, TableFacts
from levada.values import Lsn, Watermark

FACTS = TableFacts(1, 0, 1, 0, 1)


def snapshot(id_: int, parent: int | None, operation: str = "append") -> Snapshot:
    """Return a snapshot without a stamp."""
    return Snapshot(id_, operation, id_ * 1000, None, FACTS, parent)


def chain(*operations: str, first: int = 1, parent: int | None = None) -> dict[int, Snapshot]:
    """Return snapshots numbered from ``first``, each the parent of the next."""
    made = {}
    for number, operation in enumerate(operations, first):
        made[number] = snapshot(number, parent, operation)
        parent = number
    return made


def without(snapshots: Mapping[int, Snapshot], *gone: int) -> dict[int, Snapshot]:
    """Return what is left after these expired."""
    return {i: s for i, s in snapshots.items() if i not in gone}


OURS = chain("append", "overwrite")  # the recorded snapshot is 2
COMPACTED = chain("append", "overwrite", "replace", "replace")
BACK = OURS | {3: snapshot(3, 1, "replace")}


@pytest.mark.parametrize(
    ("current", "versions", "verdict"),
    [
        (2, [OURS], Verdict.INTACT),
        (2, [{}], Verdict.INTACT),
        (4, [COMPACTED], Verdict.INTACT),
        (3, [without(COMPACTED, 1, 2, 4)], Verdict.INTACT),
        (4, [without(COMPACTED, 1, 2, 3), COMPACTED], Verdict.INTACT),
        (4, [without(COMPACTED, 1, 2, 3), without(COMPACTED, 1, 2, 4)], Verdict.INTACT),
        (4, [without(COMPACTED, 1, 2, 3)], Verdict.HISTORY_LOST),
        (4, [without(COMPACTED, 3)], Verdict.HISTORY_LOST),
        (3, [chain("append", "overwrite", "append")], Verdict.FOREIGN_WRITE),
        (3, [chain("append", "overwrite", "delete")], Verdict.FOREIGN_WRITE),
        (4, [chain("append", "overwrite", "overwrite", "replace")], Verdict.FOREIGN_WRITE),
        (4, [chain("append", "overwrite", "replace", "append")], Verdict.FOREIGN_WRITE),
        (3, [{3: snapshot(3, 2, "append")}], Verdict.FOREIGN_WRITE),
        (1, [OURS], Verdict.ROLLED_BACK),
        (1, [without(OURS, 2)], Verdict.ROLLED_BACK),
        (3, [BACK], Verdict.ROLLED_BACK),
        (3, [without(BACK, 2)], Verdict.ROLLED_BACK),
        (3, [without(BACK, 1, 2), BACK], Verdict.ROLLED_BACK),
        (3, [without(BACK, 1, 2)], Verdict.HISTORY_LOST),
        (3, [OURS | {3: snapshot(3, None, "replace")}], Verdict.ROLLED_BACK),
        (None, [OURS], Verdict.ROLLED_BACK),
    ],
    ids=[
        "nothing since",
        "nothing since, unlisted",
        "compacted twice",
        "compacted, expired",
        "compacted twice, expired",
        "compacted twice, expired step by step",
        "compacted twice, expired, log lost",
        "one in between expired, log lost",
        "append",
        "delete",
        "overwrite, compacted",
        "compacted, append",
        "append, expired",
        "rolled back",
        "rolled back, expired",
        "rolled back, compacted",
        "rolled back, compacted, recorded expired",
        "rolled back, compacted, expired",
        "rolled back, compacted, expired, log lost",
        "replaced by another writer",
        "emptied",
    ],
)
def test_histories(current: int | None, versions: list[dict[int, Snapshot]], verdict: Verdict) -> None:
    """Only descent from the recorded snapshot by commits that change no row leaves a table intact."""
    assert judge(2, current, versions).verdict is verdict


def test_the_first_foreign_commit_is_named() -> None:
    """The message can name the commit that another writer began with, not the compaction after it."""
    found = judge(2, 5, [chain("append", "overwrite", "replace", "delete", "append")]).foreign
    assert found is not None
    assert (found.id, found.operation) == (4, "delete")


@dataclass
class _Table:
    """A table that anyone writes to, with what it really holds."""

    versions: list[dict[int, Snapshot]] = field(default_factory=lambda: [chain("append")])
    current: int = 1
    rows: dict[int, int] = field(default_factory=lambda: {1: 1})
    recorded: int = 1

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        return self.versions[0]

    def commit(self, operation: str) -> None:
        new = len(self.rows) + 1
        self.rows[new] = self.rows[self.current] if operation == "replace" else new
        self.versions.insert(0, self.snapshots | {new: snapshot(new, self.current, operation)})
        self.current = new

    def expire(self) -> None:
        self.versions.insert(0, {self.current: self.snapshots[self.current]})

    def roll_back(self, choice: int) -> None:
        kept = sorted(self.snapshots)
        self.current = kept[choice % len(kept)]
        self.versions.insert(0, dict(self.snapshots))


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["ours", "replace", "replace", "append", "expire", "forget"]),
        st.integers(0, 5),
    ),
    max_size=12,
)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_a_table_that_lost_or_gained_rows_is_never_intact(steps: list[str | int]) -> None:
    """Whatever other writers do, a table is found intact only with the rows of Levada's last commit."""
    table = _Table()
    for step in steps:
        if isinstance(step, int):
            table.roll_back(step)
        elif step == "expire":
            table.expire()
        elif step == "forget":
            del table.versions[2:]
        elif step == "ours":
            if judge(table.recorded, table.current, table.versions).verdict is Verdict.INTACT:
                table.commit("overwrite")
                table.recorded = table.current
        else:
            table.commit(step)
        verdict = judge(table.recorded, table.current, table.versions).verdict
        same = table.rows[table.current] == table.rows[table.recorded]
        assert same or verdict is not Verdict.INTACT


def test_the_record_survives_as_text() -> None:
    """A written record is read back unchanged. Text of others is no record."""
    made = LastCommit(Watermark("shop", 3, Lsn(1000)), 77, 2)
    assert LastCommit.parse(made.to_text()) == made
    for text in (None, "", "{", "[]", "7", '"x"', '{"pipeline": "shop"}', made.to_text().replace("0/3E8", "?")):
        assert LastCommit.parse(text) is None
