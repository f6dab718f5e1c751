"""The limits that a container has, by which worker processes and Spark's slots are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runtime.manifest_text import manifests

from levada.runtime.config_rules import require_valid
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.resources.machine import (
    apply_threads,
    available_cores,
    change_memory,
    jvm_heap,
    memory_limit,
    task_slots,
    worker_limit,
)

CORES = len(os.sched_getaffinity(0))
GIB = 1 << 30
V1 = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, CORES, None),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, CORES, None),
        ({"cpu.max": "50000 100000\n", "memory.max": "1073741824\n"}, 1, GIB),
        ({"cpu.max": "100100 100000\n"}, min(2, CORES), None),
        ({"cpu.max": "99900000 100000\n"}, CORES, None),
        (
            {**V1, "memory/memory.limit_in_bytes": "1073741824\n"},
            CORES,
            GIB,
        ),
        (
            {**V1, "cpu/cpu.cfs_quota_us": "10000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
            1,
            None,
        ),
    ],
    ids=["no cgroup", "no limit", "both", "above one core", "more than there is", "version 1", "version 1, no memory"],
)
def test_limits(tmp_path: Path, files: dict[str, str], cores: int, memory: int | None) -> None:
    """Both versions of cgroups are read, and what is not limited or not there is no limit."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (available_cores(tmp_path), memory_limit(tmp_path)) == (cores, memory)


def test_workers_fit_in_the_memory() -> None:
    """Two for each core, as far as the memory goes, and always one."""
    assert worker_limit(2, None) == 4
    assert worker_limit(2, GIB) == 4
    assert worker_limit(64, GIB) == 6
    assert worker_limit(64, GIB // 4) == 1
    assert worker_limit(1, 64 * GIB) == 2


def test_apply_threads_follow_the_cores() -> None:
    """Eight tables at least are written at the same time, four for each core, and never more than 32."""
    assert [apply_threads(cores) for cores in (1, 2, 4, 8, 16, 192)] == [8, 8, 16, 32, 32, 32]


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 16, 17, 32, 64, 96, 192, 448])
def test_a_manifest_is_valid_on_each_machine(cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that the engine chooses by the machine are within the bounds that the manifest has for them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    config = pipeline_config(manifests(), work_dir=tmp_path)
    require_valid(config)
    assert available_cores() <= cores


def test_changes_take_a_part_of_a_machine_without_limits() -> None:
    """They take more with more cores, as far as a quarter of the machine's memory."""
    assert change_memory(2, None, 24 * GIB) == change_memory(1, None, 24 * GIB) == (3 * 256 + 96) << 20
    assert change_memory(8, None, 64 * GIB) == (9 * 256 + 96) << 20
    assert change_memory(64, None, 32 * GIB) == 8 * GIB
    assert change_memory(64, None, GIB) == (256 + 96) << 20


def test_spark_fits_in_the_memory() -> None:
    """The heap and the number of tasks grow with the memory, from what Spark needs up to what it can use."""
    assert [jvm_heap(memory) >> 20 for memory in (GIB // 2, GIB, 2 * GIB, 3 * GIB, 64 * GIB)] == [
        256,
        256,
        768,
        1024,
        1024,
    ]
    assert [task_slots(4, memory) for memory in (GIB // 2, GIB, 2 * GIB, 3 * GIB, 64 * GIB)] == [1, 1, 3, 4, 4]
    assert (jvm_heap(None), task_slots(4, None)) == (GIB, 4)
