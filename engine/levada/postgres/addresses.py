"""Resolution of host names within a time limit.

libpq resolves names itself, outside of its `connect_timeout`. It waits for minutes for a resolver that does not answer,
and blocks every Python thread meanwhile.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

_NOT_RESOLVED: Final = ("/", "@")
"""First characters of a Unix socket's folder and of an abstract socket. Neither is a host name."""

HostAddress = tuple[str, str]
"""A host with one of its addresses, empty for a Unix socket."""

LookUp = Callable[..., list[tuple[Any, ...]]]
"""The signature of `socket.getaddrinfo`."""


def resolve(host: str, port: int, timeout_s: float, look_up: LookUp = socket.getaddrinfo) -> tuple[str, ...]:
    """Return the addresses of a host name.

    The result is empty for an address, a Unix socket and a list of hosts, which libpq handles itself. Raise
    OperationalError if the resolver does not know the name, or does not answer within ``timeout_s`` seconds.
    """
    if not host or host.startswith(_NOT_RESOLVED) or "," in host or _is_address(host):
        return ()
    answers: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(look_up(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError("it is not a host name"))

    # The call cannot be interrupted. An abandoned thread ends when the resolver gives up.
    threading.Thread(target=ask, name="levada-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise psycopg.OperationalError(f'no answer for host name "{host}" within {timeout_s:g} s') from None
    if isinstance(answer, OSError):
        raise psycopg.OperationalError(f'cannot resolve host name "{host}": {answer.strerror or answer}') from answer
    return tuple(dict.fromkeys(str(address[4][0]) for address in answer))


def resolve_all(hosts: Sequence[str], port: int, timeout_s: float) -> tuple[HostAddress, ...]:
    """Return the addresses of several hosts in their order, or none for one host that `resolve` has none for.

    Raise OperationalError if no host can be resolved. One that cannot be is left out.
    """
    found: list[HostAddress] = []
    failed: psycopg.OperationalError | None = None
    for host in hosts:
        try:
            addresses = resolve(host, port, timeout_s)
        except psycopg.OperationalError as error:
            failed = error
            continue
        if not addresses and len(hosts) > 1:
            addresses = ("" if host.startswith(_NOT_RESOLVED) else host,)
        found += [(host, address) for address in addresses]
    if failed is not None and not found:
        raise failed
    return tuple(found)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
