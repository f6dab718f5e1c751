"""Damage to the files of an Iceberg table."""

from __future__ import annotations

import re
from pathlib import Path

from tests.rigs.lake import Lake


def folder(lake: Lake) -> Path:
    """The table's folder."""
    return Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:")) / "shop_public" / "orders"


def newest_metadata(lake: Lake) -> Path:
    """The metadata file that the catalog names."""

    def version(path: Path) -> int:
        found = re.match(r"v?(\d+)", path.name)
        assert found is not None
        return int(found[1])

    return max((folder(lake) / "metadata").glob("*.metadata.json"), key=version)


def damage(path: Path, how: str) -> None:
    """Remove the file, cut it in the middle, or write over it."""
    crc = path.with_name(f".{path.name}.crc")
    crc.unlink(missing_ok=True)
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b"\0" * path.stat().st_size)
