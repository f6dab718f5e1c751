"""Comparison of desired objects with live ones, as a tenant may make them: long, and in another order."""

from __future__ import annotations

from typing import Any

import pytest

from levada_operator.decide.comparison import is_within


class Counted(dict[str, Any]):
    """A live item that counts how often it is looked at."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)


@pytest.mark.parametrize(
    ("field", "key"),
    [("env", "name"), ("volumes", "name"), ("volumeMounts", "mountPath"), ("containers", "name"),
     ("ownerReferences", "uid"), ("imagePullSecrets", "name")],
)  # fmt: skip
def test_a_long_list_is_compared_item_by_item(field: str, key: str) -> None:
    """Thousands of items of a pod template, which are few kilobytes, take no time that grows with their square."""
    count, Counted.looks = 2000, 0
    wanted = {field: [{key: f"A{number}", "value": "x"} for number in range(count)]}
    live = {field: [Counted(wanted[field][number], more=1) for number in reversed(range(count))]}
    assert is_within(wanted, live)
    assert Counted.looks < 10 * count
    assert not is_within({field: [*wanted[field], {key: "B"}]}, live)
    assert not is_within({field: [{key: "A1", "value": "y"}]}, live)


def test_items_without_a_key_are_found_too() -> None:
    """The name of an image pull secret may be empty."""
    assert is_within({"imagePullSecrets": [{}, {"name": ""}]}, {"imagePullSecrets": [{"name": "b"}, {}]})
    assert not is_within({"env": [{"value": "x"}]}, {"env": [{"name": "a", "value": "y"}]})
    assert is_within({"env": ["x"]}, {"env": ["y", "x"]})


@pytest.mark.parametrize("field", ["selector", "matchLabels", "nodeSelector"])
def test_a_selector_is_compared_as_a_whole(field: str) -> None:
    """One label more selects no pod, or other ones. Another apply removes it, so it is a change."""
    wanted = {field: {"role": "driver", "left-out": None}}
    assert is_within(wanted, {field: {"role": "driver"}})
    assert not is_within(wanted, {field: {"role": "driver", "added": "x"}})
    assert not is_within(wanted, {field: {}})
    assert is_within({"labels": {"role": "driver"}}, {"labels": {"role": "driver", "added": "x"}})
