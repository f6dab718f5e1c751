"""The key index alone: a batch of 100,000 keys in indexes of different sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.scale.curve import Definition, Points

from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import KeyKind, Keys

_FILE_ROWS = 1_000_000
_BATCH = 100_000
_BATCHES = 5


def keys(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"build, per million keys": [], "replace a batch of 100,000": []}
    for size in sizes:
        index = KeyIndex.open(folder / str(size), KeyKind.INTEGER)
        cpu = time.process_time()
        for number, first in enumerate(range(0, size, _FILE_ROWS)):
            index.add_file(f"file-{number}", Keys(KeyKind.INTEGER, np.arange(first, min(first + _FILE_ROWS, size))))
        index.commit(1)
        points["build, per million keys"].append((size, (time.process_time() - cpu) / size * 1e6))
        random = np.random.default_rng(1)
        used = []
        for turn in range(_BATCHES):
            batch = Keys(KeyKind.INTEGER, np.unique(random.integers(0, size, _BATCH)))
            cpu = time.process_time()
            assert index.lookup(batch, forget=True).found.all()
            index.add_file(f"batch-{turn}", batch)
            index.commit(turn + 2)
            used.append(time.process_time() - cpu)
        points["replace a batch of 100,000"].append((size, sorted(used)[_BATCHES // 2]))
    return points


DEFINITIONS = (
    Definition("index", "The key index, by the number of keys", "keys", "CPU s", (200_000, 2_000_000, 20_000_000),
               (200_000, 2_000_000, 20_000_000, 200_000_000), 0.0, keys),
)  # fmt: skip
