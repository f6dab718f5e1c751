"""The choice of tests by `make near`."""

from __future__ import annotations

from tests.near import folders


def test_a_change_reaches_the_packages_above_it() -> None:
    """The tests of a changed package run, and those of the packages above it. Those below it cannot break by it."""
    found = folders(["engine/levada/segments/log.py"])
    assert {"tests/segments", "tests/copy", "tests/runtime", "tests/cli"} <= set(found)
    assert not {"tests/schema", "tests/postgres", "tests/operator"} & set(found)


def test_a_change_of_the_operator_reaches_its_chart() -> None:
    """The operator is below no package of the engine."""
    assert folders(["operator/levada_operator/app/__init__.py"]) == ["tests/chart", "tests/operator"]


def test_a_change_of_a_test_runs_its_folder() -> None:
    """Only a shared rig concerns all of them."""
    assert folders(["tests/page/test_display.py"]) == ["tests/page"]
    assert len(folders(["tests/rigs/engine.py"])) > 20
