"""Requests to an API server, against the stand-in and a server that only refuses."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.operator.apiserver import StandInApiServer
from tests.operator.samples import pipeline
from tests.rigs.waiting import LIMIT_S

from levada_operator.app.credentials import Credentials, read_credentials
from levada_operator.kube.client import ApiServer
from levada_operator.kube.interface import RequestFailed


@pytest.fixture
def server() -> Iterator[StandInApiServer]:
    """A stand-in for an API server with a Pipeline."""
    with StandInApiServer() as one:
        one.put(pipeline())
        yield one


def client(port: int, token: str = "t") -> ApiServer:
    """Return a client of a server on the loopback."""
    headers = {"Authorization": f"Bearer {token}"}
    return ApiServer(f"http://127.0.0.1:{port}/", ssl.create_default_context(), lambda: headers)


def api_of(found: Credentials) -> ApiServer:
    """Return a client with these credentials."""
    return ApiServer(found.server, found.context, found.headers)


def test_objects_from_creation_to_deletion(server: StandInApiServer) -> None:
    """Every kind of request reaches its path, with the token, and returns the object."""
    api = client(server.port)
    lease = {"kind": "Lease", "metadata": {"namespace": "data", "name": "one"}}
    created = api.create(lease)
    replaced = api.replace({**created, "spec": {"holderIdentity": "me"}})
    assert api.get("Lease", "data", "one") == replaced
    with pytest.raises(RequestFailed) as conflict:
        api.replace({**created, "spec": {"holderIdentity": "other"}})
    assert conflict.value.status == 409
    assert api.apply_status("Pipeline", "data", "shop", {"phase": "Streaming"})["status"] == {"phase": "Streaming"}
    (listed,) = api.list_objects("Pipeline", "data", labels="").objects
    assert (listed["kind"], listed["apiVersion"], listed["metadata"]["name"]) == (
        "Pipeline", "levada.dev/v1alpha1", "shop"
    )  # fmt: skip
    api.delete("Pipeline", "data", "shop")
    assert api.get("Pipeline", "data", "shop") is None
    api.delete("Pipeline", "data", "shop")
    assert {r.token for r in server.requests} == {"t"}


def test_refusal_for_a_while_is_not_repeated() -> None:
    """A 429 is reported with its Retry-After. The client does not sleep and repeat by itself, not even a read."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(429)
            self.send_header("Retry-After", "7")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as busy:
        thread = threading.Thread(target=busy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        with pytest.raises(RequestFailed) as refused:
            client(busy.server_port).list_objects("Pod", labels="levada.dev/pipeline")
        busy.shutdown()
        thread.join()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 7.0)
    assert seen == ["/api/v1/pods?resourceVersion=0&labelSelector=levada.dev%2Fpipeline"]


def test_list_has_all_pages() -> None:
    """A list of Levada's own kinds is read to its last page. managedFields are left out."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path.partition("?")[2])
            following = {"continue": "a=b"} if len(seen) == 1 else {}
            item = {"metadata": {"name": f"n{len(seen)}", "managedFields": [{}]}}
            body = json.dumps({"metadata": following, "items": [item]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as paged:
        thread = threading.Thread(target=paged.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        found = client(paged.server_port).list_objects("TableSync")
        paged.shutdown()
        thread.join()
    assert [body["metadata"] for body in found.objects] == [{"name": "n1"}, {"name": "n2"}]
    assert seen == ["limit=250", "limit=250&continue=a%3Db"]


@pytest.mark.parametrize("pages", [20, 40])
def test_time_for_a_list_grows_with_its_pages(pages: int) -> None:
    """5,000 objects are read, though each page takes 4 s. A list that takes longer than 100 s is given up."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            following = {"continue": "more"} if len(seen) < pages else {}
            body = json.dumps({"metadata": following, "items": [{"metadata": {"name": f"n{len(seen)}"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as slow:
        thread = threading.Thread(target=slow.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{slow.server_port}/"
        api = ApiServer(address, ssl.create_default_context(), dict, clock=lambda: 4.0 * len(seen))
        with pytest.raises(RequestFailed) if pages > 25 else nullcontext():
            assert len(api.list_objects("TableSync").objects) == pages
        slow.shutdown()
        thread.join()


def test_slow_answer_has_its_own_time_out() -> None:
    """An answer may take longer than a connection. A time-out of the answer is a failure without a status."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            # Longer than a connection may take.
            ended.wait(2.5)
            with suppress(OSError):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as slow:
        thread = threading.Thread(target=slow.serve_forever, args=(0.05,), daemon=True)
        thread.start()

        def write(read_s: float) -> None:
            context = ssl.create_default_context()
            api = ApiServer(f"http://127.0.0.1:{slow.server_port}", context, dict, read_s=read_s)
            api.apply_status("Pipeline", "data", "shop", {})

        write(LIMIT_S)
        with pytest.raises(RequestFailed, match="ReadTimeoutError") as failed:
            write(0.2)
        ended.set()
        slow.shutdown()
        thread.join()
    assert failed.value.status == 0


def test_no_answer_is_a_failure_without_a_status() -> None:
    """A server that is away is no permanent refusal."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    with pytest.raises(RequestFailed) as failed:
        client(port).get("Pod", "data", "one")
    assert failed.value.status == 0
    assert not failed.value.refused


def test_replaced_token_is_read(server: StandInApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is replaced in the file of the credentials is sent without a restart."""
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    path.write_text(server.kubeconfig("first"))
    api = api_of(read_credentials(reread_s=0))
    api.get("Pipeline", "data", "shop")
    path.write_text(server.kubeconfig("second"))
    api.get("Pipeline", "data", "shop")
    assert [r.token for r in server.requests] == ["first", "second"]


@pytest.mark.usefixtures("own_process")
def test_operator_does_not_import_the_official_client() -> None:
    """Its models take 25 MB. kopf would import it, because it is installed for the ConfigMap store."""
    command = [sys.executable, "-X", "importtime", "-m", "levada_operator"]
    ended = subprocess.run(
        command, env=os.environ | {"LEVADA_LEASE_SECONDS": "0"}, capture_output=True, text=True, check=False
    )
    assert "the Lease must last a second or longer" in ended.stderr
    modules = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "kopf" in modules
    # kopf's attempt at kubernetes.client is listed, although it fails.
    assert "kubernetes" not in modules


@contextmanager
def pods_of(status: int, answer: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """Answer each POST so. Yield the port and the paths."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_port, paths
        server.shutdown()
        thread.join()


def test_dry_run_of_a_pod_creates_it() -> None:
    """A pod is created by the dry run. One that exists by that name has passed everything else."""
    pod = {"kind": "Pod", "metadata": {"namespace": "data", "name": "shop-driver-0"}, "spec": {}}
    with pods_of(409, {"message": 'pods "shop-driver-0" already exists'}) as (port, paths):
        client(port).rehearse(pod)
    assert paths[0].startswith("/api/v1/namespaces/data/pods?")
    assert "dryRun=All" in paths[0]
    with (
        pods_of(403, {"message": "violates PodSecurity"}) as (port, _),
        pytest.raises(RequestFailed, match="violates"),
    ):
        client(port).rehearse(pod)


def test_a_name_is_one_word_of_the_path(server: StandInApiServer) -> None:
    """A name with slashes, dots or a query leads to no other object."""
    api = client(server.port)
    api.create({"kind": "Lease", "metadata": {"namespace": "data", "name": "one"}})
    for name in ("../leases/one", "x/../one", "one?watch=true", "one#"):
        assert api.get("Lease", "data", name) is None
    for namespace, name in (("data", ".."), ("..", "one"), (".", "one")):
        with pytest.raises(RequestFailed, match="is no name"):
            api.get("Lease", namespace, name)
