"""The list of faults fits the code."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from tests.mutants.faults import ROOT, Fault, read_faults

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_can_be_seeded(fault: Fault) -> None:
    """Its text occurs once in its file, which is another valid module afterwards, and its tests exist."""
    before = (ROOT / fault.file).read_text()
    after = fault.apply(before)
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    assert [test for test in fault.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_each_rule_has_its_faults() -> None:
    """Names are unique, and no rule that matters is left out."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    counts = Counter(fault.rule for fault in FAULTS)
    least = {"fold": 3, "rules": 4, "positions": 2, "projection": 2, "upsert": 3, "resolver": 3, "operator": 5}
    watermarks = [f"watermark of {name}" for name in ("iceberg", "ducklake", "postgres", "bigquery", "opensearch")]
    assert {rule: n for rule, n in (least | dict.fromkeys(watermarks, 1)).items() if counts[rule] < n} == {}
