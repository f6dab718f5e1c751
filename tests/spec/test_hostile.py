"""Manifests that no person writes, and that are refused with a clean error all the same."""

from __future__ import annotations

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
