"""Before each session of the stream: the server, the slot and the WAL are those that the engine has read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from levada.capture.history import KnownSource, SessionPlan, Witnessed, plan_session, require_witness
from levada.errors import LevadaError, NeedsOperator, SlotLost, Transient
from levada.postgres.server import ServerIdentity, ServerState, parse_switches
from levada.postgres.slots import SlotStatus
from levada.values import Lsn, Witness

IDENTITY = ServerIdentity("7000", 1, 16384, "2026-01-01 00:00:00+00")
SLOT = SlotStatus(
    name="levada_shop",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active=False,
    active_pid=None,
    restart_lsn=Lsn(50),
    confirmed_flush_lsn=Lsn(100),
    wal_status="reserved",
    safe_wal_size=None,
    invalidation_reason=None,
    failover=None,
    synced=False,
)
SERVER = ServerState(IDENTITY, Lsn(1000), False, {}, SLOT)
WITNESS = Witness(Lsn(180), 740, 1_000_000)
KNOWN = KnownSource(staged=Lsn(200), witness=WITNESS, acknowledged=Lsn(150), since=Lsn(40), identity=IDENTITY)
LATER = Witness(Lsn(390), 750, 2_000_000)
REMOVED = replace(KNOWN, acknowledged=Lsn(300), released=Witnessed(Lsn(400), LATER))


def server(*, slot: dict[str, Any] | None = None, identity: dict[str, Any] | None = None, **fields: Any) -> ServerState:
    """Return the server with some things otherwise."""
    changed = replace(SERVER, slot=replace(SLOT, **(slot or {})), identity=replace(IDENTITY, **(identity or {})))
    return replace(changed, **fields)


@pytest.mark.parametrize(
    ("known", "now", "plan"),
    [
        pytest.param(
            KnownSource(), SERVER, SessionPlan(Lsn(100), None, Lsn(100)), id="a first start begins at the slot"
        ),
        pytest.param(KNOWN, SERVER, SessionPlan(Lsn(200), Lsn(100), Lsn(200)), id="a slot behind is verified"),
        pytest.param(
            KNOWN,
            server(slot={"confirmed_flush_lsn": Lsn(200)}),
            SessionPlan(Lsn(200), None, Lsn(200)),
            id="a slot in step is not",
        ),
        pytest.param(
            replace(KNOWN, acknowledged=Lsn(300)),
            server(slot={"confirmed_flush_lsn": Lsn(250)}),
            SessionPlan(Lsn(250), None, Lsn(250)),
            id="a slot beyond the segments, acknowledged by the engine",
        ),
        pytest.param(
            KNOWN,
            server(identity={"started_at": "later"}),
            SessionPlan(Lsn(200), Lsn(100), Lsn(200)),
            id="a restarted server",
        ),
        pytest.param(
            KNOWN,
            server(identity={"timeline": 2}, switches={1: Lsn(200)}),
            SessionPlan(Lsn(200), Lsn(100), Lsn(200)),
            id="a failover that lost nothing",
        ),
        pytest.param(
            KNOWN,
            server(identity={"timeline": 4}, switches={1: Lsn(500), 2: Lsn(600), 3: Lsn(700)}),
            SessionPlan(Lsn(200), Lsn(100), Lsn(200)),
            id="several failovers",
        ),
        pytest.param(
            REMOVED,
            SERVER,
            SessionPlan(Lsn(200), Lsn(100), Lsn(400)),
            id="removed segments are verified, and sent again",
        ),
        pytest.param(
            REMOVED,
            server(slot={"confirmed_flush_lsn": Lsn(250)}),
            SessionPlan(Lsn(250), Lsn(250), Lsn(400)),
            id="a slot among the removed segments",
        ),
        pytest.param(
            replace(REMOVED, staged=Lsn(500), acknowledged=Lsn(500)),
            SERVER,
            SessionPlan(Lsn(500), Lsn(100), Lsn(500)),
            id="segments past the removed ones",
        ),
    ],
)
def test_a_session_begins(known: KnownSource, now: ServerState, plan: SessionPlan) -> None:
    """A server that has what was read from it is streamed from, after a comparison where WAL is sent again."""
    assert plan_session(known, now, "levada_shop", "shop") == plan


@pytest.mark.parametrize(
    ("known", "now", "kind", "code"),
    [
        pytest.param(KNOWN, server(identity={"system_id": "8"}), SlotLost, "source_changed", id="another server"),
        pytest.param(KNOWN, server(identity={"database_oid": 9}), SlotLost, "source_changed", id="another database"),
        pytest.param(KNOWN, server(wal_end=Lsn(199)), SlotLost, "source_changed", id="the WAL ends too early"),
        pytest.param(
            replace(KNOWN, acknowledged=Lsn(1001)),
            SERVER,
            SlotLost,
            "source_changed",
            id="the WAL ends before an acknowledged position",
        ),
        pytest.param(
            KNOWN, server(wal_end=Lsn(199), in_recovery=True), Transient, "source_behind", id="a standby that replays"
        ),
        pytest.param(
            KNOWN,
            server(identity={"timeline": 2}, switches={1: Lsn(199)}),
            SlotLost,
            "source_changed",
            id="a failover that lost what was staged",
        ),
        pytest.param(
            replace(KNOWN, acknowledged=Lsn(300)),
            server(identity={"timeline": 2}, switches={1: Lsn(299)}),
            SlotLost,
            "source_changed",
            id="a failover that lost what was acknowledged",
        ),
        pytest.param(
            KNOWN,
            server(identity={"timeline": 3}, switches={2: Lsn(500)}),
            SlotLost,
            "source_changed",
            id="a timeline of another ancestry",
        ),
        pytest.param(
            replace(KNOWN, identity=replace(IDENTITY, timeline=2)),
            SERVER,
            SlotLost,
            "source_changed",
            id="a timeline back",
        ),
        pytest.param(
            replace(KNOWN, identity=replace(IDENTITY, timeline=2)),
            replace(SERVER, in_recovery=True),
            Transient,
            "source_behind",
            id="a standby that has not followed a failover",
        ),
        pytest.param(KNOWN, replace(SERVER, slot=None), SlotLost, "slot_missing", id="no slot"),
        pytest.param(
            KNOWN,
            replace(server(identity={"started_at": "later"}), slot=None, in_recovery=True),
            Transient,
            "source_standby",
            id="another standby",
        ),
        pytest.param(
            KNOWN,
            server(identity={"started_at": "later"}, slot={"synced": True, "temporary": True}, in_recovery=True),
            Transient,
            "source_standby",
            id="another standby that copies the slot",
        ),
        pytest.param(
            KNOWN,
            server(identity={"started_at": "later"}, slot={"wal_status": "lost"}, in_recovery=True),
            Transient,
            "source_standby",
            id="a former primary that has lost its slot",
        ),
        pytest.param(
            KNOWN,
            replace(SERVER, slot=None, in_recovery=True),
            SlotLost,
            "slot_missing",
            id="no slot on the standby that is the source",
        ),
        pytest.param(KnownSource(), replace(SERVER, slot=None), SlotLost, "slot_missing", id="no slot at first"),
        pytest.param(
            KNOWN, server(slot={"wal_status": "lost"}), SlotLost, "slot_lost", id="a slot whose WAL is removed"
        ),
        pytest.param(
            KNOWN,
            server(slot={"invalidation_reason": "idle_timeout"}),
            SlotLost,
            "slot_lost",
            id="a slot that was idle for too long",
        ),
        pytest.param(
            KNOWN, server(slot={"confirmed_flush_lsn": Lsn(201)}), SlotLost, "slot_lost", id="a slot that was advanced"
        ),
        pytest.param(
            KNOWN, server(slot={"database": "other"}), NeedsOperator, "slot_foreign", id="a slot of another database"
        ),
    ],
)
def test_a_session_is_refused(known: KnownSource, now: ServerState, kind: type[LevadaError], code: str) -> None:
    """A server that may lack changes that the tables need, or have others, is not streamed from."""
    with pytest.raises(kind) as refused:
        plan_session(known, now, "levada_shop", "shop")
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("known", "verify_from", "found", "same"),
    [
        (KNOWN, 100, WITNESS, True),
        (KNOWN, 180, WITNESS, True),
        (KNOWN, 181, None, True),
        (KNOWN, 100, None, False),
        (KNOWN, 100, replace(WITNESS, xid=741), False),
        (KNOWN, 100, replace(WITNESS, commit_ts_us=1), False),
        (KNOWN, 100, replace(WITNESS, commit_lsn=Lsn(190)), False),
        (KNOWN, 181, replace(WITNESS, commit_lsn=Lsn(190)), False),
        (REMOVED, 100, LATER, True),
        (REMOVED, 100, WITNESS, False),
        (replace(REMOVED, staged=Lsn(400)), 100, WITNESS, True),
        (replace(KNOWN, witness=None), 100, None, True),
        (replace(KNOWN, witness=None), 100, WITNESS, False),
        (replace(KNOWN, witness=None, since=Lsn(190)), 100, WITNESS, True),
    ],
)
def test_the_wal_that_is_sent_again_is_the_same(
    known: KnownSource, verify_from: int, found: Witness | None, same: bool
) -> None:
    """The last transaction sent again must be the last one staged, and none if none was staged.

    Any other is refused.
    """
    if same:
        require_witness(known, Lsn(verify_from), found)
        return
    with pytest.raises(SlotLost) as refused:
        require_witness(known, Lsn(verify_from), found)
    assert refused.value.code == "source_changed"


def test_a_timeline_history_names_the_ends() -> None:
    """Each line of a history file has a timeline and its end. Comments are skipped."""
    history = b"# a comment\n1\t0/3000060\tno recovery target specified\n\n2\t1A/5000108\tbefore 2026-01-01\n"
    assert parse_switches(history) == {1: Lsn.parse("0/3000060"), 2: Lsn.parse("1A/5000108")}
