"""Conformance suites for destinations and stores, and their inputs: made-up tables, copies and staged changes.

A suite is a class of pytest tests. Subclass it and give it one fixture, see `DestinationConformance` and
`StoreConformance`. This package needs pytest, which ``levada[testing]`` installs. Nothing of the engine imports it.
"""

import pytest

# Before the imports below, so that a failed assertion of a suite shows the values that it compared.
pytest.register_assert_rewrite("levada.testing.destinations", "levada.testing.stores")

from levada.testing.destinations.suite import DestinationConformance  # noqa: E402
from levada.testing.memory import MemoryDestination, MemoryTables  # noqa: E402
from levada.testing.place import DestinationPlace, Reader, fold_changelog  # noqa: E402
from levada.testing.rows import ArrowRows  # noqa: E402
from levada.testing.source import Source, SourceTable, column, table  # noqa: E402
from levada.testing.stores import OpenStore, StoreConformance  # noqa: E402

__all__ = [
    "ArrowRows",
    "DestinationConformance",
    "DestinationPlace",
    "MemoryDestination",
    "MemoryTables",
    "OpenStore",
    "Reader",
    "Source",
    "SourceTable",
    "StoreConformance",
    "column",
    "fold_changelog",
    "table",
]
