"""Host names are resolved within a time limit, whatever the resolver does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.rigs.database import Database

from levada.errors import Transient
from levada.postgres import addresses
from levada.postgres.addresses import resolve


@pytest.fixture
def silent() -> Iterator[threading.Event]:
    """Keeps a resolver silent until the test's end."""
    ended = threading.Event()
    yield ended
    ended.set()


def test_a_resolver_that_does_not_answer_is_left(
    db: Database, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of connection end with an error that names the host, and is tried again."""

    def look_up(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        silent.wait()
        return []

    monkeypatch.setattr(addresses, "resolve", partial(resolve, look_up=look_up))
    source = replace(db.connection, host="db.example.com", connect_timeout_s=1)
    for connect in (source.connect, source.connect_replication):
        with pytest.raises(Transient) as raised:
            connect()
        assert raised.value.code == "source_unreachable"
        assert 'no answer for host name "db.example.com" within 1 s' in raised.value.message
        assert "spec.source.host" in raised.value.hint


def test_an_unknown_name_is_reported(db: Database) -> None:
    """The error names the host. The name is one that no resolver may know (RFC 2606)."""
    source = replace(db.connection, host="db.invalid")
    for connect in (source.connect, source.connect_replication):
        with pytest.raises(Transient) as raised:
            connect()
        assert raised.value.code == "source_unreachable"
        assert '"db.invalid"' in raised.value.message


def test_every_address_of_a_name_is_tried(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have an address that nothing listens on, as localhost has where the server has no IPv6."""

    def look_up(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(addresses, "resolve", partial(resolve, look_up=look_up))
    source = replace(db.connection, host="db.example.com")
    with source.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    source.connect_replication().finish()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0", "/var/run/postgresql", "@socket", "a,b", ""])
def test_what_needs_no_resolver_is_left_to_libpq(host: str) -> None:
    """Addresses, sockets and lists of hosts ask no resolver here."""

    def look_up(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        raise AssertionError(host)

    assert resolve(host, 5432, 1.0, look_up) == ()


def test_addresses_are_named_once() -> None:
    """The resolver's order stays."""

    def look_up(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [(0, 0, 0, "", (a, port)) for a in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]

    assert resolve("db", 5432, 1.0, look_up) == ("10.0.0.2", "10.0.0.1")
    with pytest.raises(psycopg.OperationalError, match="cannot resolve"):
        resolve("x" * 300, 5432, 1.0)
