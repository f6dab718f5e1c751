"""A status that was written by hand. The account of a driver may, and each pod of the namespace can have it."""

from __future__ import annotations

import pytest
from tests.operator.odd_status import TIMES, written_by_hand
from tests.operator.samples import DEFAULTS, NOON, pipeline, table_sync

from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey


@pytest.mark.parametrize("time", TIMES)
def test_status_that_was_written_by_hand_is_replaced(time: str) -> None:
    """Whatever its times are and whatever it lacks, the operator's own status is written over it."""
    cache, (of_pipeline, of_table) = ClusterCache(DEFAULTS), written_by_hand(time)
    cache.put(pipeline() | {"status": of_pipeline})
    cache.put(table_sync() | {"status": of_table})
    seen = cache.observe(PipelineKey("data", "shop"), NOON)
    assert seen is not None
    written = {w.key.kind: w.status for w in reconcile(seen).statuses}
    assert (written["Pipeline"]["phase"], written["TableSync"]["display"]["copied"]) == ("Starting", "0%")
    assert time not in str(written)
