"""Manifests that no person writes, and that are refused with a clean error all the same."""

from __future__ import annotations

import sys

import pytest

from levada.errors import InvalidManifest
from levada.spec import load_manifests

GOOD = """apiVersion: levada.dev/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  source: {host: db, port: 5432, database: shop}
  tables: {include: [{schema: public}]}
  destination: {iceberg: {catalog: {type: Hadoop, warehouse: "file:///lake"}}}
"""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("[" * 5000 + "]" * 5000, "is nested too deeply"),
        ("{a: " * 3000 + "1" + "}" * 3000, "is nested too deeply"),
        ("9" * 5000, "x.yaml:5: is not YAML: this is not a value of type int"),
        ("0x" + "f" * 5000, "x.yaml:5: is not YAML: this number is too large"),
        ("2020-13-45", "x.yaml:5: is not YAML: this is not a value of type timestamp"),
        ("!!int abc", "x.yaml:5: is not YAML: this is not a value of type int"),
        ("!!float abc", "x.yaml:5: is not YAML: this is not a value of type float"),
        ("!!bool abc", "x.yaml:5: is not YAML: this is not a value of type bool"),
        ("!!timestamp abc", "x.yaml:5: is not YAML: this is not a value of type timestamp"),
        ('"a\\0b"', "x.yaml:5: is not YAML: this text contains a NUL character"),
        ("!!python/object:os.system x", "could not determine a constructor"),
    ],
    ids=range(11),
)
def test_hostile_value_is_a_problem_of_the_manifest(value: str, problem: str) -> None:
    """A value that YAML's loader cannot read is reported with its line, if it has one."""
    load_manifests(GOOD, "x.yaml")
    with pytest.raises(InvalidManifest) as raised:
        load_manifests(GOOD.replace("5432", value), "x.yaml")
    assert problem in raised.value.message


MERGED = "a{0}: &a{0} {{<<: [*a{1}, *a{1}]}}"
LISTED = "a{0}: &a{0} [*a{1}, *a{1}, *a{1}]"


@pytest.mark.parametrize("line", [MERGED, LISTED])
def test_aliases_of_aliases_are_refused_before_they_are_expanded(line: str) -> None:
    """A few hundred bytes stand for billions of values. A person may write them, and so may a tenant in a ConfigMap."""
    lines = "\n".join(["a0: &a0 {x: 1}", *(line.format(n, n - 1) for n in range(1, 60))])
    with pytest.raises(InvalidManifest, match="its aliases repeat too much"):
        load_manifests(f"{GOOD}{lines}\n", "x.yaml")


def test_aliases_that_a_person_writes_are_values() -> None:
    """An anchor may be used some times, as a value and as a merge key."""
    text = GOOD.replace("port: 5432", "port: &port 5432, standby: {host: a, port: *port}")
    with pytest.raises(InvalidManifest) as raised:
        load_manifests(text, "x.yaml")
    assert "alias" not in raised.value.message
    merged = GOOD.replace("[{schema: public}]", "[&one {schema: public}, {<<: *one, schema: other}]")
    assert len(load_manifests(merged, "x.yaml").pipeline.spec.tables.include) == 2


def _calls(table_syncs: int) -> int:
    """Return the calls of Python functions for a manifest of so many TableSyncs."""
    head = "---\napiVersion: levada.dev/v1alpha1\nkind: TableSync\n"
    text = GOOD + "".join(
        f"{head}metadata: {{name: t{n}}}\nspec: {{pipelineRef: {{name: shop}}, table: {{schema: p, name: t{n}}}}}\n"
        for n in range(table_syncs)
    )
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert len(load_manifests(text, plugins=False).table_syncs) == table_syncs
    finally:
        sys.setprofile(None)
    return calls


def test_work_grows_with_the_table_syncs_and_not_with_their_square() -> None:
    """Twice as many take twice the work. There are thousands, also from a tenant who would keep the operator busy."""
    assert _calls(400) / _calls(200) < 2.2


@pytest.mark.parametrize("deep", ["[" * 100_000, "{a: " * 50_000, "- " * 40_000, "? " * 40_000], ids=range(4))
def test_depth_does_not_end_the_process(deep: str) -> None:
    """A text of any size that is nested without end, also one that is never closed, is refused."""
    with pytest.raises(InvalidManifest, match="is nested too deeply"):
        load_manifests(f"{GOOD}---\n{deep}", "x.yaml")


def test_what_is_wrong_is_said_in_the_same_words_however_long_the_manifest_is() -> None:
    """The line of a fault is that of the text, by either of the parsers."""
    for size in (1, 100_000):
        with pytest.raises(InvalidManifest, match=r"x\.yaml:8: is not YAML"):
            load_manifests(f"{GOOD}a: [}}\n" + "# x\n" * size, "x.yaml")
