"""All tests of a destination, in one class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from levada.destinations import Destination
from levada.testing.destinations.changes import Changes
from levada.testing.destinations.copies import Copies
from levada.testing.destinations.crashes import Crashes
from levada.testing.destinations.cuts import Cuts
from levada.testing.destinations.erasures import Erasures
from levada.testing.destinations.errors import Errors
from levada.testing.destinations.groups import Groups
from levada.testing.destinations.kept_ranges import KeptRanges
from levada.testing.destinations.kept_rows import KeptRows
from levada.testing.destinations.metadata import Metadata
from levada.testing.destinations.schema_changes import SchemaChanges
from levada.testing.destinations.shadow_copies import ShadowCopies
from levada.testing.destinations.steps import OpenDestination
from levada.testing.destinations.values import Values
from levada.testing.destinations.watermarks import Watermarks
from levada.testing.place import DestinationPlace
from levada.testing.source import Source


class DestinationConformance(
    Copies,
    Groups,
    Watermarks,
    Changes,
    KeptRows,
    Metadata,
    SchemaChanges,
    Values,
    Errors,
    ShadowCopies,
    KeptRanges,
    Cuts,
    Erasures,
    Crashes,
):
    """Tests of a destination. Subclass it with a fixture ``place`` that returns a `DestinationPlace`.

    ::

        class TestMine(DestinationConformance):
            @pytest.fixture
            def place(self, tmp_path):
                return DestinationPlace(open=lambda: MyDestination(tmp_path), read=read_mine)

    The destination's capabilities decide which tests run. A schema change that the destination refuses with
    NeedsOperator ``schema_change_unsupported`` skips the rest of its test, after a check that nothing was written.
    """

    @pytest.fixture
    def place(self) -> DestinationPlace:
        """Return the place of this test. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `place` that returns a DestinationPlace")

    @pytest.fixture
    def start(self, place: DestinationPlace) -> Iterator[OpenDestination]:
        """Open destinations as a process does at its start. All are shut down after the test."""
        opened: list[Destination] = []

        def starting() -> Destination:
            opened.append(place.open())
            opened[-1].startup()
            return opened[-1]

        yield starting
        for destination in opened:
            destination.shutdown()

    @pytest.fixture
    def source(self) -> Source:
        """Return a source without tables, whose transactions are read one by one."""
        return Source(row_group_bytes=1)
