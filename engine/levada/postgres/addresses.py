"""Host names, resolved within a time limit. The C library waits for a resolver that does not answer for minutes.

libpq resolves names itself, outside of its `connect_timeout`. While it does, no other thread of Python runs.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg

_NOT_RESOLVED: Final = ("/", "@")
"""First characters of a folder with a Unix socket and of an abstract socket."""

LookUp = Callable[..., list[tuple[Any, ...]]]
"""`socket.getaddrinfo`."""


def resolve(host: str, port: int, timeout_s: float, look_up: LookUp = socket.getaddrinfo) -> tuple[str, ...]:
    """Return the addresses of a host name, empty for what needs no resolver and for a list of hosts.

    Raise OperationalError if the resolver does not know the name, or does not answer within ``timeout_s`` seconds.
    """
    if not host or host.startswith(_NOT_RESOLVED) or "," in host or _is_address(host):
        return ()
    answers: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(look_up(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError("it is not a host name"))

    # It cannot be interrupted. One that is left ends once the resolver gives up.
    threading.Thread(target=ask, name="levada-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise psycopg.OperationalError(f'no answer for host name "{host}" within {timeout_s:g} s') from None
    if isinstance(answer, OSError):
        raise psycopg.OperationalError(f'cannot resolve host name "{host}": {answer.strerror or answer}') from answer
    return tuple(dict.fromkeys(str(address[4][0]) for address in answer))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
