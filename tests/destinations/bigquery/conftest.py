"""An emulator of BigQuery, and datasets without tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.destinations.bigquery.warehouse import Warehouse
from tests.servers.bigquery import PROJECT, Emulator, emulator

from levada.destinations import DestinationContext

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for all tests."""
    with emulator(tmp_path_factory.mktemp("bigquery")) as found:
        yield found


@pytest.fixture
def warehouse(server: Emulator, tmp_path: Path) -> Warehouse:
    """Datasets without tables."""
    dataset = f"shop_{next(_numbers)}"
    manifest = {
        "project": PROJECT,
        "dataset": dataset,
        "metadataDataset": f"{dataset}_meta",
        "endpoint": server.endpoint,
    }
    return Warehouse(server, manifest, DestinationContext("shop", tmp_path), dataset)
