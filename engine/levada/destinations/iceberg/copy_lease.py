"""The copy lease of a table: the driver that copies it, as an initial or a shadow copy, and the folder of its files.

The lease is stored in a table property, so that after a crash the next driver can remove files that no commit refers
to. The commit that adds the files to the table also removes the lease. So while a folder has a lease, the table needs
none of its files.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from levada.destinations.fenced import require_epoch
from levada.destinations.iceberg.java import java_errors
from levada.destinations.iceberg.metadata import Property, TableMetadata
from levada.destinations.iceberg.storage import IcebergStorage
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import LevadaError
from levada.locations import lies_below
from levada.values import Watermark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyLease:
    """The epoch of the copying driver, and the folder of its files. The folder ends with a slash."""

    epoch: int
    folder: str

    @classmethod
    def of(cls, table: IcebergTable) -> CopyLease | None:
        """Return the lease on the table, or None if there is none or it cannot be parsed."""
        return cls.parse(table.metadata.properties)

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> CopyLease | None:
        """Return the lease in a table's properties, or None if there is none or it cannot be parsed."""
        try:
            kept = json.loads(properties.get(Property.COPY_LEASE, ""))
            return cls(int(kept["epoch"]), str(kept["folder"]))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def take(cls, table: IcebergTable, mark: Watermark, kept_folder: str | None = None) -> CopyLease:
        """Take the lease on the table. If there is an earlier lease, replace it and remove its files.

        The files in ``kept_folder`` are not removed, and the new lease has that folder, if the earlier one had it.

        Raise StaleEpoch if the earlier lease belongs to a newer driver.
        """
        former = cls.of(table)
        if former is not None:
            require_epoch(former.epoch, mark.epoch)
            if former.folder != kept_folder:
                _log.info("%s: removing the files of an interrupted copy", table.name)
                former.remove_files(table)
        if former is not None and former.folder == kept_folder and lies_below(former.folder, table.storage().folder):
            lease = cls(mark.epoch, former.folder)
        else:
            lease = cls.below(table.storage().folder, mark)
        table.set_properties(lease.properties())
        return lease

    @classmethod
    def below(cls, folder: str, mark: Watermark) -> CopyLease:
        """Return a lease with a new folder in a table's folder of data files, which ends with a slash."""
        return cls(mark.epoch, f"{folder}{uuid.uuid4()}/")

    def properties(self) -> dict[str, str | None]:
        """Return the table property of the lease."""
        return {Property.COPY_LEASE.value: json.dumps({"epoch": self.epoch, "folder": self.folder})}

    def holds(self, table: IcebergTable, mark: Watermark) -> bool:
        """Return True if the table, as last read, has this lease. Raise StaleEpoch if a newer driver has the lease."""
        current = CopyLease.of(table)
        if current is not None:
            require_epoch(current.epoch, mark.epoch)
        return current == self

    def release(self, table: IcebergTable) -> None:
        """Remove the files and the lease, unless the files were committed or another driver has taken the lease."""
        if CopyLease.of(table) == self:
            self.remove_files(table)
            table.set_properties({Property.COPY_LEASE.value: None})

    def remove_files(self, table: IcebergTable) -> None:
        """Remove the files.

        Call it only while the table has the lease, as no snapshot refers to the files until then. Files that cannot be
        removed are left as orphans. A folder outside of the table's data, or with files of the table, is not removed,
        because any writer can set the property.
        """
        if not lies_below(self.folder, table.storage().folder):
            _log.warning("%s: %s is not removed, because it is not below the table's data", table.name, self.folder)
            return
        try:
            with java_errors(f"remove {self.folder}"):
                if any(lies_below(path, self.folder) for path in table.paths_in_use()):
                    _log.warning("%s: %s is not removed, because the table has files there", table.name, self.folder)
                    return
                table.java.io().deletePrefix(self.folder)
        except LevadaError as error:
            _log.warning("cannot remove the orphan files in %s: %s", self.folder, error.message)

    def storage(self, table: IcebergTable) -> IcebergStorage:
        """Return the storage for the copy's folder, with the table's current credentials."""
        return replace(table.storage(), folder=self.folder)


def require_not_newer(metadata: TableMetadata, epoch: int | None) -> None:
    """Raise StaleEpoch if a driver newer than ``epoch`` has written the table or copies it.

    If ``epoch`` is None, do nothing.
    """
    lease = CopyLease.parse(metadata.properties)
    require_epoch(max((m.epoch for m in (metadata.mark, lease) if m is not None), default=0), epoch)
