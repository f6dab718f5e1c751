"""Results that are kept: equal inputs have the result of the first, and plans do not depend on what was kept."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.operator.cluster import PlanStore
from tests.operator.samples import pipeline, table_sync, upgraded

from levada_operator.decide.reconcile import Memos, reconcile
from levada_operator.memo import Memo
from levada_operator.observe.objects import read_pipeline


def test_result_is_kept_for_equal_inputs_of_a_key() -> None:
    """The last inputs count, by equality. Beyond the limit the results are computed again."""
    computed: list[str] = []

    def get(key: str, *inputs: Any) -> int:
        return memo.get(("data", "shop", key), inputs, lambda: computed.append(key) or len(computed))  # type: ignore[func-returns-value]  # None

    memo = Memo[tuple[str, str, str], int](2)
    assert [get("a", {"x": [1]}), get("a", {"x": [1]}), get("a", {"x": [2]}), get("b", {})] == [1, 1, 2, 3]
    assert computed == ["a", "a", "b"]
    get("c")
    get("a", {"x": [2]})
    assert computed == ["a", "a", "b", "c", "a"]


def test_nothing_is_kept_of_a_pipeline_that_is_gone() -> None:
    """A tenant may make and delete large Pipelines under other names without end."""
    memos = Memos()
    kept = (memos.accepted, memos.desired, memos.former, memos.applied)
    for number in range(3):
        body = pipeline(metadata={"name": f"shop-{number}"})
        seen = replace(upgraded(), pipeline=read_pipeline(body))
        reconcile(seen, memos)
        assert any(map(len, kept))
        memos.forget(seen.pipeline.key)
        assert not any(map(len, kept))


def test_plan_does_not_depend_on_what_was_kept() -> None:
    """A Pipeline that is changed step by step has the plans of an operator that starts at each step."""
    store = PlanStore(upgraded(), pipeline(), [table_sync()])
    store.owned = {k: deepcopy(dict(b)) for k, b in store.seen.owned.bodies.items()}
    for change in ({"spec": {"suspend": True}}, {"spec": {"suspend": False}}, {"spec": {"driver": {"image": "other"}}}):
        store.pipeline = pipeline(**change)
        for _ in range(2):
            seen = store.observe()
            kept = reconcile(seen)
            assert reconcile(seen, Memos()) == kept
            store.carry_out(kept)
