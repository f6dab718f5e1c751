"""Who makes a copy of a table, its first or one beside it, and where the files are.

A property of the table tells it, so that whoever comes after a crash removes files that no commit names. The commit
that makes them the table's removes the claim: a folder that is claimed has nothing that the table needs.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from levada.destinations.iceberg.files import Storage
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import StaleEpoch
from levada.values import Watermark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """The driver that makes a copy, and the folder of the files, which ends with a slash."""

    epoch: int
    folder: str

    @classmethod
    def of(cls, table: IcebergTable) -> Claim | None:
        """Return the claim on the table. None: no copy of it is made, or the property cannot be read."""
        return cls.parse(table.metadata.properties)

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Claim | None:
        """Return the claim that the properties of a table have, None without one that can be read."""
        try:
            kept = json.loads(properties.get(Property.CLAIM, ""))
            return cls(int(kept["epoch"]), str(kept["folder"]))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def take(cls, table: IcebergTable, mark: Watermark) -> Claim:
        """Claim the table in place of whoever began before; what they left is removed.

        Raise StaleEpoch if that is a newer driver.
        """
        former = cls.of(table)
        if former is not None:
            if former.epoch > mark.epoch:
                raise StaleEpoch(mark.epoch, former.epoch)
            _log.info("%s: removing what a copy left that did not end", table.name)
            former.remove_files(table)
        claim = cls(mark.epoch, f"{table.storage().folder}{uuid.uuid4()}/")
        told = json.dumps({"epoch": claim.epoch, "folder": claim.folder})
        table.set_properties({Property.CLAIM.value: told})
        return claim

    def holds(self, table: IcebergTable, mark: Watermark) -> bool:
        """Tell whether the claim is on the table, as that was last read; raise StaleEpoch if a newer driver's is."""
        current = Claim.of(table)
        if current is not None and current.epoch > mark.epoch:
            raise StaleEpoch(mark.epoch, current.epoch)
        return current == self

    def release(self, table: IcebergTable) -> None:
        """Remove the files and the claim, unless the table has them by now, or another driver has claimed it."""
        if Claim.of(table) == self:
            self.remove_files(table)
            table.set_properties({Property.CLAIM.value: None})

    def remove_files(self, table: IcebergTable) -> None:
        """Remove the files. Call it while the claim is on the table: until then no snapshot names them."""
        table.remove_folder(self.folder)

    def storage(self, table: IcebergTable) -> Storage:
        """Return where the files go, with the credentials that the table has now."""
        return replace(table.storage(), folder=self.folder)
