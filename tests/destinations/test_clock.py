"""A clock that is ahead of the source's, or was set back since the table's last commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.foreign_commits import resync
from tests.destinations.orders import ORDERS, Source, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations.iceberg.clock import EVERY_S, LIMIT_S, Clock
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


def test_a_clock_that_is_ahead_writes_nothing(hadoop: Lake) -> None:
    """No commit has a time of the future, whatever it changes. Once the clock is right, all goes on."""
    source = Source()
    destination = hadoop.destination(source=source)
    stream = copy(hadoop, destination)
    stream.insert(id=9, item="streamed", note="n")
    source.machine_ahead_s = 400 * 24 * 3600
    late = hadoop.destination(source=source)
    for write in (lambda: apply(hadoop, late, stream), lambda: copy(hadoop, late), lambda: late.maintain(ORDERS.id)):
        with pytest.raises(Transient, match="minutes ahead") as caught:
            write()
        assert caught.value.code == "destination_clock"
    source.machine_ahead_s = 0
    stream.taken = 1000
    apply(hadoop, hadoop.destination(source=source), stream)
    assert items(hadoop)[9] == "streamed"


def test_a_resync_replaces_a_table_of_the_future(hadoop: Lake) -> None:
    """A table that such a clock has written is made again, because Iceberg refuses every commit to it."""
    stream = copy(hadoop, hadoop.destination())
    change_metadata(hadoop, 400 * 24 * HOURS_MS)
    resync(hadoop, hadoop.destination(), stream)


class Hands:
    """Two clocks of a machine and that of a source, set by hand."""

    def __init__(self) -> None:
        self.wall = self.steady = self.source = 1_000_000.0
        self.asked = 0
        self.away = False

    def pass_by(self, seconds: float) -> None:
        """Let all clocks go on."""
        self.wall, self.steady, self.source = self.wall + seconds, self.steady + seconds, self.source + seconds

    def clock(self) -> float:
        """Return the source's time."""
        self.asked += 1
        if self.away:
            raise Transient("source_unreachable", "no answer")
        return self.source

    def made(self, record: Path | None = None) -> Clock:
        """Return the clock that looks at them."""
        source: Any = self
        return Clock(source, wall=lambda: self.wall, steady=lambda: self.steady, record=record)


def is_refused(clock: Clock) -> bool:
    """Return True if a commit is refused now."""
    try:
        clock.check("commit")
    except Transient as error:
        return error.code == "destination_clock"
    return False


def test_a_jump_is_noticed_before_the_next_commit() -> None:
    """The source is asked only after a jump and each hour, so a commit costs no connection."""
    hands = Hands()
    clock = hands.made()
    for _ in range(100):
        assert not is_refused(clock)
        hands.pass_by(1)
    assert hands.asked == 1
    hands.wall += 2 * LIMIT_S
    assert is_refused(clock)
    hands.wall -= 2 * LIMIT_S
    assert not is_refused(clock)
    hands.pass_by(EVERY_S)
    hands.source -= 2 * LIMIT_S
    assert is_refused(clock)


def test_a_machine_that_is_right_after_a_jump() -> None:
    """A clock that was behind, and is set right, is no reason to wait. Nor is one that is minutes behind."""
    hands = Hands()
    hands.wall -= 3600
    clock = hands.made()
    assert not is_refused(clock)
    hands.wall += 3600
    assert not is_refused(clock)


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, LIMIT_S - 1])
def test_a_table_that_an_accepted_clock_wrote_is_not_of_the_future(ahead_s: float) -> None:
    """It is not dropped before a copy, whichever machine has written it, and whichever opens it."""
    writer, reader = Hands(), Hands()
    writer.wall += LIMIT_S - 1
    reader.wall += ahead_s
    assert not is_refused(writer.made())
    assert writer.wall * 1000 <= reader.made().latest_ms() < (reader.source + 2 * LIMIT_S) * 1000


def test_a_source_that_is_away() -> None:
    """Commits go on and do not wait for its answer each time. A jump counts without it."""
    hands = Hands()
    hands.away = True
    clock = hands.made()
    for _ in range(30):
        assert not is_refused(clock)
        hands.pass_by(1)
    assert hands.asked == 1
    hands.wall += 2 * LIMIT_S
    assert is_refused(clock)
    hands.away = False
    hands.pass_by(60)
    hands.source = hands.wall
    assert not is_refused(clock)


def test_a_process_that_begins_while_the_source_is_away(tmp_path: Path) -> None:
    """The last comparison of an earlier process counts, and so does a jump since. That before a boot is forgotten."""
    hands, record = Hands(), tmp_path / "clock.json"
    assert not is_refused(hands.made(record))
    hands.away = True
    hands.pass_by(1000)
    assert not is_refused(hands.made(record))
    hands.wall += 2 * LIMIT_S
    assert is_refused(hands.made(record))
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "another"}))
    assert not is_refused(hands.made(record))
    record.write_text("[]")
    assert not is_refused(hands.made(record))
    hands.away = False
    assert is_refused(hands.made(record))
