"""The server at an address: its identity, the end of its WAL, and the slot's row, read over one connection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import psycopg
from psycopg import pq

from levada import codes
from levada.errors import LevadaError, SlotLost
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import RESYNC_ALL, source_errors
from levada.postgres.replication import execute_replication, quote_literal
from levada.postgres.slots import SlotStatus, slot_status
from levada.values import Lsn

_SWITCH: Final = re.compile(rb"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)
"""A line of a timeline's history file (PostgreSQL manual, chapter "Continuous Archiving and Point-in-Time
Recovery").
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The properties of a server that identify the history of its data.

    ``started_at`` is the start of its postmaster. The data was not replaced while it is unchanged.
    """

    system_id: str
    timeline: int
    database_oid: int
    started_at: str

    @property
    def source(self) -> str:
        """The part that marks tables at a destination, as `levada.postgres.identity` defines it."""
        return f"{self.system_id}/{self.database_oid}"

    def to_json(self) -> list[Any]:
        """Return the identity for a JSON document."""
        return [self.system_id, self.timeline, self.database_oid, self.started_at]

    @classmethod
    def from_json(cls, raw: list[Any] | None) -> Self | None:
        """Parse the result of `to_json`. Return None for None."""
        return None if raw is None else cls(str(raw[0]), int(raw[1]), int(raw[2]), str(raw[3]))


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server at one moment. ``slot`` is None if the slot does not exist.

    ``switches`` has the end of each earlier timeline. The server's history contains no WAL of that timeline beyond it.
    """

    identity: ServerIdentity
    wal_end: Lsn
    in_recovery: bool
    switches: Mapping[int, Lsn]
    slot: SlotStatus | None


def read_server(connection: PostgresConnection, slot: str) -> ServerState:
    """Return the server's identity, the end of its WAL and the slot's row."""
    doing, silence = f"identifying the server at {connection.where}", connection.silence()
    names = connection.names.at(connection.host, connection.port)
    pg = connection.connect_replication(application="identify")

    def ask(command: str) -> pq.abc.PGresult:
        return execute_replication(pg, command, doing, silence, names)

    try:
        system_id, timeline, wal_end, _ = _values(ask("IDENTIFY_SYSTEM"))
        recovering, started_at, database = _values(
            ask(
                "SELECT pg_is_in_recovery(), pg_postmaster_start_time(), oid FROM pg_database"
                " WHERE datname = current_database()"
            )
        )
        rows = ask(f"SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = {quote_literal(slot)}")
        row = rows.get_value(0, 0) if rows.ntuples else None
        return ServerState(
            ServerIdentity(system_id, int(timeline), int(database), started_at),
            Lsn.parse(wal_end),
            recovering == "t",
            _switches(ask, int(timeline)),
            None if row is None else slot_status(json.loads(row), in_recovery=recovering == "t"),
        )
    finally:
        pg.finish()


@source_errors("reading the server's start time")
def read_start_time(connection: psycopg.Connection[Any]) -> str:
    """Return the start time of the server's postmaster, in the form of `ServerIdentity.started_at`."""
    row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
    assert row is not None
    return str(row[0])


@source_errors("reading the time of the server")
def read_clock(connection: psycopg.Connection[Any]) -> datetime:
    """Return the present time of the server, in UTC."""
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return datetime.fromtimestamp(row[0], UTC)


def parse_switches(history: bytes) -> Mapping[int, Lsn]:
    """Return the end of each timeline that a timeline's history file lists."""
    return {int(m[1]): Lsn.parse(m[2].decode()) for m in _SWITCH.finditer(history)}


def _switches(ask: Callable[[str], pq.abc.PGresult], timeline: int) -> Mapping[int, Lsn]:
    if timeline == 1:
        # The first timeline has no history file.
        return {}
    try:
        content = ask(f"TIMELINE_HISTORY {timeline}").get_value(0, 1)
    except LevadaError as error:
        if error.code != codes.SOURCE_ERROR:
            raise
        raise SlotLost(
            "source_changed",
            f"the history of the server's timeline {timeline} cannot be read: {error.message}",
            hint=RESYNC_ALL,
        ) from error
    return parse_switches(content or b"")


def _values(result: pq.abc.PGresult) -> list[str]:
    values = (result.get_value(0, i) for i in range(result.nfields))
    return ["" if value is None else value.decode() for value in values]
