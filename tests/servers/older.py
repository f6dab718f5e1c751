"""Servers that Levada does not support, because they are too old."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from levada.local.postgres import EmbeddedPostgres

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
"""The programs of Debian 12's package postgresql-15. They may be missing."""

_REFUSED = b'SFATAL\0VFATAL\0C42704\0Munrecognized configuration parameter "%s"\0Fguc.c\0L6920\0Rset_config_option\0\0'


class Postgres15(EmbeddedPostgres):
    """A server of version 15, from Debian's package."""

    def __init__(
        self,
        data: Path,
        *,
        version: int = 18,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        address: str | None = None,
        network: str | None = None,
    ) -> None:
        super().__init__(data, version=version, port=port, settings=settings, address=address, network=network)
        self.bin = DEBIAN_15

    def _open_programs(self) -> None:
        """Do nothing: all users can run what a package of Debian installed."""


@contextmanager
def postgres_15() -> Iterator[Postgres15]:
    """Run a server of version 15 in a temporary folder that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="levada-15-") as folder,
        Postgres15(Path(folder) / "data") as server,
    ):
        yield server


@contextmanager
def refusing_setting(name: str) -> Iterator[int]:
    """Refuse each login as a server does that does not have a setting, as bytes of version 13. Yield the port."""
    body = _REFUSED % name.encode()
    answer = b"E" + (len(body) + 4).to_bytes(4, "big") + body

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                length = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
                client.recv(length - 4, socket.MSG_WAITALL)
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        # A close alone does not end an accept.
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
