"""Results that are kept: equal inputs have the result of the first, and plans do not depend on what was kept."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from tests.operator.cluster import PlanStore
from tests.operator.samples import pipeline, table_sync, upgraded

from levada_operator.decide import acceptance, reconcile
from levada_operator.decide.acceptance import Acceptance
from levada_operator.memo import Memo
from levada_operator.observe.objects import PipelineKey


def test_result_is_kept_for_equal_inputs_of_a_key() -> None:
    """The last inputs count, by equality. Beyond the limit the results are computed again."""
    computed: list[str] = []

    def get(key: str, *inputs: Any) -> int:
        return memo.get(key, inputs, lambda: computed.append(key) or len(computed))  # type: ignore[func-returns-value]  # None

    memo = Memo[str, int](2)
    assert [get("a", {"x": [1]}), get("a", {"x": [1]}), get("a", {"x": [2]}), get("b", {})] == [1, 1, 2, 3]
    assert computed == ["a", "a", "b"]
    get("c")
    get("a", {"x": [2]})
    assert computed == ["a", "a", "b", "c", "a"]


def test_plan_does_not_depend_on_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Pipeline that is changed step by step has the plans of an operator that starts at each step."""
    store = PlanStore(upgraded(), pipeline(), [table_sync()])
    store.owned = {k: deepcopy(dict(b)) for k, b in store.seen.owned.bodies.items()}
    for change in ({"spec": {"suspend": True}}, {"spec": {"suspend": False}}, {"spec": {"driver": {"image": "other"}}}):
        store.pipeline = pipeline(**change)
        for _ in range(2):
            seen = store.observe()
            kept = reconcile.reconcile(seen)
            with monkeypatch.context() as fresh:
                fresh.setattr(acceptance, "ACCEPTED", Memo[PipelineKey, Acceptance](1))
                fresh.setattr(reconcile, "DESIRED", Memo[PipelineKey, list[dict[str, Any]]](1))
                fresh.setattr(reconcile, "APPLIED", Memo[tuple[str, str, str], dict[str, Any] | None](1))
                assert reconcile.reconcile(seen) == kept
            store.carry_out(kept)
