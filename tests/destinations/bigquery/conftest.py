"""An emulator of BigQuery, and datasets without tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.destinations.bigquery.warehouse import Warehouse
from tests.servers.bigquery import PROJECT, Emulator

from levada.destinations import DestinationContext

_numbers = itertools.count(1)


@pytest.fixture
def warehouse(bigquery: Emulator, tmp_path: Path) -> Warehouse:
    """Datasets without tables."""
    dataset = f"shop_{next(_numbers)}"
    manifest = {
        "project": PROJECT,
        "dataset": dataset,
        "metadataDataset": f"{dataset}_meta",
        "endpoint": bigquery.endpoint,
    }
    return Warehouse(bigquery, manifest, DestinationContext("shop", tmp_path), dataset)
