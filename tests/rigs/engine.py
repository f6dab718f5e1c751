"""The engine as a user runs it: ``levada run`` in a process of its own, watched over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from tests.rigs.database import Database
from tests.rigs.equality import differences
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.ports import free_port

_T = TypeVar("_T")


@dataclass
class Engine:
    """A pipeline named ``shop`` over a test's database, with everything it keeps in one folder."""

    db: Database
    folder: Path
    spec: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def manifest(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def log(self) -> str:
        path = self.folder / "engine.log"
        return path.read_text() if path.exists() else ""

    def write_secret(self, name: str, keys: dict[str, str]) -> None:
        """Write a Secret, a file for each key."""
        folder = self.folder / "secrets" / name
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in keys.items():
            (folder / key).write_text(value)

    def write_manifest(self, *table_syncs: dict[str, Any]) -> Path:
        """Write the manifest and the Secret that it names."""
        self.write_secret("pg", {"username": "postgres", "password": "unused"})
        spec: dict[str, Any] = {
            "source": {
                "host": "127.0.0.1",
                "port": self.db.server.port,
                "database": self.db.name,
                "credentialsSecretRef": {"name": "pg"},
                "tls": {"mode": "Disable"},
                "slot": {"name": f"levada_{self.db.name}"},
                "publication": {"name": f"levada_{self.db.name}"},
            },
            # So that a test sees why a table is parked.
            "tables": {"include": [{"schema": "public", "name": "*"}], "onUnstreamable": "Hold"},
            "batch": {"maxFillMs": 200},
            "freshnessSeconds": 2,
            "destination": {
                "iceberg": {
                    "catalog": {"type": "Hadoop", "warehouse": f"file://{self.warehouse}"},
                    "namespace": "shop_{schema}",
                }
            },
            "staging": {"uri": f"file://{self.folder / 'staging'}"},
            "store": {"postgres": {}},
            "retries": {"delaySeconds": 1, "maxDelaySeconds": 2},
        }
        documents = [
            {
                "apiVersion": "levada.dev/v1alpha1",
                "kind": "Pipeline",
                "metadata": {"name": "shop"},
                "spec": {**spec, **self.spec},
            },
            *table_syncs,
        ]
        self.manifest.write_text(yaml.safe_dump_all(documents))
        return self.manifest

    def levada(
        self, *args: str, check: bool = True, timeout: float = LIMIT_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "levada", *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **environment},
        )
        assert not check or done.returncode == 0, (
            f"levada {args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def options(self) -> list[str]:
        """Return the arguments of every command."""
        return [str(self.manifest), "--secrets", str(self.folder / "secrets")]

    def start(self, *wrapper: str, port: int = 0, **environment: str) -> None:
        """Start ``levada run`` in the background. ``wrapper`` is a command that runs it, such as ``prlimit``."""
        self.port = port or free_port()
        with open(self.folder / "engine.log", "ab") as log:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "levada", "run", *self.options(), "--port", str(self.port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def progress(self) -> dict[str, Any] | None:
        """Return what /v1/progress says, None while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/progress", timeout=LIMIT_S) as answer:
                return dict(json.load(answer))
        except (OSError, urllib.error.URLError):
            return None

    def runs(self) -> bool:
        """Return False once the process has ended."""
        return self.process is None or self.process.poll() is None

    def until(self, look: Callable[[], _T], accepted: Callable[[_T], object] = bool, *, limit_s: float = LIMIT_S) -> _T:
        """Wait for anything that the engine brings. Fail with the log, also if the engine ends first."""
        return until(look, accepted, alive=self.runs, report=lambda: self.log[-6000:], limit_s=limit_s)

    def wait_for(self, what: Callable[[dict[str, Any]], object], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until the progress satisfies."""
        found = self.until(self.progress, lambda p: p is not None and what(p), limit_s=limit_s)
        assert found is not None
        return found

    def wait_log(self, words: str) -> None:
        """Wait until the log has these words."""
        self.until(lambda: words in self.log)

    def wait_caught_up(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until every table is Ready and has applied all that is committed now."""
        [(target,)] = self.db.query("SELECT pg_current_wal_insert_lsn()::text")
        return self.wait_for(
            lambda p: (
                bool(p["tables"])
                and all(t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target) for t in p["tables"])
            ),
            limit_s,
        )

    def kill(self) -> None:
        """End the engine and its children as a power cut would."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(LIMIT_S)

    def stop(self) -> int:
        """Stop the engine as Kubernetes does. Return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def verify(self, *tables: str) -> dict[str, dict[str, Any]]:
        """Let the running engine compare these tables of schema public with the lake, as ``levada verify`` does."""
        requested = self.request_verification(*tables)["id"]
        found = self.until(lambda: self._request("GET", f"/{requested}", None), lambda v: v["finished"])
        return {result["table"].removeprefix("public."): result for result in found["tables"]}

    def request_verification(self, *tables: str, repair: bool = False) -> dict[str, Any]:
        """Request a comparison of these tables of schema public, and return its state."""
        return self._request("POST", "", {"tables": [f"public.{table}" for table in tables], "repair": repair})

    def assert_verified(self, *tables: str) -> None:
        """Require that `verify` finds all values of these tables equal. `assert_equal` is independent of it."""
        found = self.verify(*tables)
        assert found.keys() == set(tables)
        for table, result in found.items():
            assert result.get("equal"), f"{table}: {json.dumps(result)}\n{self.log[-4000:]}"
            assert not result["notCompared"], f"{table}: {result['notCompared']}"

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/verifications{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return dict(json.load(answer))

    def assert_equal(self, *tables: str, namespace: str = "shop_public") -> None:
        """Compare these tables of schema public with the lake, row by row. It shares no code with ``levada verify``.

        So it keeps that honest, and reads the lake also when no engine runs.
        """
        with self.db.connect() as connection:
            found = [differences(connection, self.warehouse, namespace, "public", t) for t in tables]
        assert not any(found), "\n".join(f for f in found if f)


class Second(Engine):
    """An engine of the same manifest, as on another machine."""

    def __init__(self, first: Engine, folder: Path) -> None:
        super().__init__(first.db, folder)
        self.first = first

    def options(self) -> list[str]:
        """Return the options of the first one, with another work folder."""
        return [*self.first.options(), "--work-dir", str(self.folder / "work")]


def lsn(text: str | None) -> int:
    """Return an LSN of the progress as a number, -1 for none."""
    if text is None:
        return -1
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


@pytest.fixture
def engine(db: Database, tmp_path: Path) -> Iterator[Engine]:
    """An engine over the test's database, ended with it."""
    made = Engine(db, tmp_path)
    try:
        yield made
    finally:
        made.kill()
