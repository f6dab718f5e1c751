"""A client that does as little as an operator can, for comparison with the operator.

A test's own process is busy with odd objects, and a busy machine delays every process. The process
``python -m tests.cluster.tenants.bare_client NAMESPACE`` changes the Pipeline ``shop`` for each line of its input. It
prints when the operator has taken the change, and when a client has that reads the same watch and writes one ConfigMap.
The delay that both have is that of the API server and of the machine.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from kubernetes import config
from tests.cluster.api_server import MERGE

APPLY: Final = "application/apply-patch+yaml"
_OWN: Final = "bare-client"
_PAUSE_S: Final = 0.2
_PIPELINES: Final = "/apis/levada.dev/v1alpha1"


@dataclass(frozen=True, slots=True)
class Delays:
    """The seconds from the answer to a change until the operator had taken it, and of the bare client meanwhile.

    ``bare`` is until the client had taken the change, or the slowest of its requests until the operator had.
    """

    operator: float
    bare: float

    def is_fair(self, requests: int = 10) -> bool:
        """Return True if the operator took the change within 5 s, or as soon as its requests allow.

        It makes up to so many requests one after the other, each of which takes as long as one of the bare client.
        """
        return self.operator <= max(5.0, requests * self.bare)


class Comparison:
    """The process of a bare client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def change(self, number: int) -> Delays:
        """Change the Pipeline, and wait until both have taken it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return Delays(found["operator"], found["bare"])


@contextlib.contextmanager
def comparison(namespace: str) -> Iterator[Comparison]:
    """Run the process."""
    command = [sys.executable, "-m", "tests.cluster.tenants.bare_client", namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Comparison(process)
        finally:
            process.kill()


class BareClient:
    """Connections for writes, for the watch of all Pipelines, and for that of the namespace's ConfigMaps."""

    def __init__(self, namespace: str) -> None:
        settings = config.new_client_from_config().configuration  # type: ignore[no-untyped-call]  # it has none
        self._host: str = settings.host
        self._pool = urllib3.PoolManager(
            maxsize=6, ca_certs=settings.ssl_ca_cert, cert_file=settings.cert_file, key_file=settings.key_file
        )
        self._headers = {"Authorization": token} if (token := settings.api_key.get("authorization")) else {}
        self._namespace = namespace
        self._seen: queue.SimpleQueue[tuple[str, int, float]] = queue.SimpleQueue()
        self._slowest = 0.0
        self._begun = time.monotonic()

    def serve(self) -> None:
        """Answer each number on the input with the seconds until the operator and this client had taken it."""
        for work in (self._take_pipelines, self._take_config_maps, self._make_requests):
            threading.Thread(target=work, daemon=True).start()
        for line in sys.stdin:
            number = int(line)
            path = f"{_PIPELINES}/namespaces/{self._namespace}/pipelines/shop"
            self._write(path, {"spec": {"freshnessSeconds": number}}, MERGE)
            written = time.monotonic()
            self._slowest = 0.0
            found: dict[str, float] = {}
            while len(found) < 2:
                who, of, at = self._seen.get()
                if of == number:
                    found.setdefault(who, at - written)
            under_way = time.monotonic() - max(written, self._begun)
            found["bare"] = max(found["bare"], self._slowest, under_way)
            print(json.dumps(found), flush=True)

    def _make_requests(self) -> None:
        """Write an object all the time, because the API server may be slow only after it has served this client."""
        while True:
            self._begun = time.monotonic()
            self._write_own(str(self._begun), f"{_OWN}-all-the-time")
            self._slowest = max(self._slowest, time.monotonic() - self._begun)
            time.sleep(_PAUSE_S)

    def _take_pipelines(self) -> None:
        """Do what an operator does at least: read the change from the watch of all Pipelines, and write an object."""
        mine = f'"namespace":"{self._namespace}"'.encode()
        for line in self._watch(f"{_PIPELINES}/pipelines"):
            if mine not in line:
                continue
            number = json.loads(line)["object"]["spec"].get("freshnessSeconds", 0)
            self._write_own(str(number), _OWN)
            self._seen.put(("bare", number, time.monotonic()))

    def _write_own(self, text: str, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": text}}
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{name}?fieldManager={_OWN}&force=true"
        self._write(path, body, APPLY)

    def _take_config_maps(self) -> None:
        for line in self._watch(f"/api/v1/namespaces/{self._namespace}/configmaps"):
            body = json.loads(line)["object"]
            if body["metadata"]["name"] == "shop-manifest":
                at = time.monotonic()
                text: str = body["data"]["pipeline.yaml"]
                number = text.partition("freshnessSeconds: ")[2].partition("\n")[0]
                self._seen.put(("operator", int(number or 0), at))

    def _watch(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a watch, and of the next one when it ends."""
        while True:
            answer = self._pool.request(
                "GET", f"{self._host}{path}?watch=true", headers=self._headers, preload_content=False
            )
            rest: list[bytes] = []
            while chunk := answer.read1(1 << 20):
                *lines, last = chunk.split(b"\n")
                for line in lines:
                    yield b"".join([*rest, line])
                    rest.clear()
                rest.append(last)
            answer.release_conn()

    def _write(self, path: str, body: dict[str, Any], content: str) -> None:
        headers = {"Content-Type": content, **self._headers}
        answer = self._pool.request("PATCH", self._host + path, body=json.dumps(body), headers=headers)
        assert answer.status < 300, answer.data.decode()


if __name__ == "__main__":
    BareClient(sys.argv[1]).serve()
