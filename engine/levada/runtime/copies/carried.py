"""The kept rows that a copy takes over from the table that it replaces, with what the source says about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from levada.apply.carried_rows import carry_over
from levada.copy.source_keys import SourceKeys, source_keys
from levada.destinations.interface import Destination
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.copy_marks import CopyMarks
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.kept_regions import add_gone_partitions, kept_region
from levada.runtime.tables.places import require_no_kept_rows
from levada.runtime.tables.publication_gaps import published_table
from levada.runtime.tables.requests import CopySettings
from levada.schema import TableTarget
from levada.schema.metadata import at_source
from levada.schema.storage import TableStorage
from levada.stores.interface import PipelineStore
from levada.values import Deletes, Watermark


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Takes over the kept rows of one pipeline's tables."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination

    def carry(self, target: TableTarget, storage: TableStorage, mark: Watermark, *, takes_all: bool) -> bool | None:
        """Write the kept rows of a table to its shadow copy, and return what `carry_over` does.

        ``storage`` is the one that the copy was read from. Unless the copy ``takes_all`` rows of the source, the source
        is asked which of the others it has. Raise its errors, and NeedsOperator ``kept_rows_unmovable``.
        """
        if not target.keeps_rows:
            return None
        region = add_gone_partitions(self.store, target.id, storage, target.schema)
        if takes_all or (region is None and target.deletes is Deletes.APPLY):
            return carry_over(self.destination, target, mark, region)
        with self._source_keys(target) as keys:
            return carry_over(self.destination, target, mark, region, keys)

    def require_none_lost(self, target: TableTarget, former: CopySettings | None) -> None:
        """Raise NeedsOperator ``kept_rows_replaced`` if a copy without a shadow copy would remove kept rows.

        ``former`` are the settings of the last copy. Without them the table at the destination is one of a state that
        is gone, or of a source table that was dropped.
        """
        nothing_kept = (
            former is not None and former.deletes is Deletes.APPLY and kept_region(self.store, target.id) is None
        )
        if not nothing_kept and not CopyMarks(self.store).has_no_copy(target.id):
            require_no_kept_rows(self.destination, target)

    @contextmanager
    def _source_keys(self, target: TableTarget) -> Iterator[SourceKeys]:
        config, schema = self.config_ref.current, at_source(target.schema)
        with config.source.connect(application="copy") as connection:
            SourceRecord(self.store).require_verified(connection)
            names = publication_names(config, self.store)
            published = published_table(connection, names, target.id, schema.name)
        with source_keys(config.source, schema, published, config.limits.locks.wait_s) as keys:
            yield keys
