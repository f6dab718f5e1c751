"""A clock that was set back since the table's last commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.orders import copy, items
from tests.rigs.lake import Lake

from levada.errors import Transient

HOURS_MS = 2 * 3600 * 1000


def set_ahead(value: Any, ms: int) -> Any:
    """Return the metadata as a machine would have written it whose clock was ahead."""
    if isinstance(value, dict):
        return {k: v + ms if k in ("timestamp-ms", "last-updated-ms") else set_ahead(v, ms) for k, v in value.items()}
    return [set_ahead(v, ms) for v in value] if isinstance(value, list) else value


def change_metadata(lake: Lake, ms: int) -> None:
    """Move the times in the newest metadata file."""
    folder = Path(lake.manifest["catalog"]["warehouse"]) / "shop_public" / "orders" / "metadata"
    newest = folder / f"v{(folder / 'version-hint.text').read_text()}.metadata.json"
    newest.write_text(json.dumps(set_ahead(json.loads(newest.read_text()), ms)))
    # Hadoop's local file system checks this file's checksum of what was there before.
    (folder / f".{newest.name}.crc").unlink(missing_ok=True)


def test_a_clock_that_goes_back_is_waited_for(hadoop: Lake) -> None:
    """A commit is refused as Transient while the clock is behind the last one, and succeeds once it is not."""
    stream = copy(hadoop, hadoop.destination())
    before = items(hadoop)
    change_metadata(hadoop, HOURS_MS)
    stream.insert(id=9, item="streamed", note="n")
    batch = stream.batch()
    with pytest.raises(Transient) as caught:
        hadoop.destination().write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == "destination_clock"
    assert items(hadoop) == before
    change_metadata(hadoop, -HOURS_MS)
    hadoop.destination().write_events(batch, hadoop.mark(batch.until))
    assert items(hadoop) == before | {9: "streamed"}
