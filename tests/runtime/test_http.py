"""The engine's port."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.rigs.waiting import LIMIT_S, until
from tests.runtime import samples

from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.runtime.host.engine_api import EngineApi
from levada.runtime.host.work_dir import published_address, running_progress
from levada.runtime.report.access_token import AccessToken
from levada.runtime.report.cuts_api import CutsApi
from levada.runtime.report.host_header import foreign_host
from levada.runtime.report.http import ProgressServer, not_ready
from levada.runtime.report.verifications import Verifications
from levada.status import CutProgress, PipelineState, Progress
from levada.values import Lsn, QualifiedTable, TableId
from levada.verify.report import TableReport
from levada.verify.table import VerifyOptions


class Snapshot:
    """A progress that a test changes under the server."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def __call__(self) -> Progress | None:
        return self.progress


def running(**changes: object) -> Progress:
    """Return a snapshot of this very moment."""
    return samples.progress(at=datetime.now(UTC), **changes)


def get(server: ProgressServer, path: str, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    try:
        request = urllib.request.Request(server.address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as r:
            return r.status, r.headers["Content-Type"], r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read().decode()


def test_all_four_answer_while_the_pipeline_runs() -> None:
    """Probes say ok, progress is the snapshot as JSON, metrics are Prometheus'."""
    progress = running()
    with ProgressServer(lambda: progress) as server:
        assert get(server, "/livez")[0] == 200
        assert get(server, "/readyz")[::2] == (200, "ok\n")
        status, content_type, body = get(server, "/v1/progress")
        assert (status, content_type) == (200, "application/json")
        assert json.loads(body) == progress.to_json()
        assert 'levada_ready{pipeline="shop"} 1.0' in get(server, "/metrics?x=1")[2]


def test_before_there_is_a_pipeline() -> None:
    """Spark takes its time to start: alive, not ready, no progress, no metrics, and no error either."""
    snapshot = Snapshot(None)
    with ProgressServer(snapshot) as server:
        assert get(server, "/livez")[0] == 200
        assert get(server, "/readyz")[::2] == (503, "starting\n")
        assert get(server, "/v1/progress")[0] == 503
        assert get(server, "/metrics")[::2] == (200, "")
        snapshot.progress = running()
        assert get(server, "/readyz")[0] == 200


def test_not_ready_says_why() -> None:
    """A ready pipeline runs, is connected, and has no error that stops it. A parked table does not count."""
    now = datetime.now(UTC)
    assert not_ready(running(), now) == ""
    assert not_ready(running(tables=(samples.table(error=samples.error(), phase="Errored"),)), now) == ""
    assert "not open" in not_ready(running(capture=samples.capture(connected=False)), now)
    assert "slot shop is not active" in not_ready(running(slot=samples.slot(name="shop", active=False)), now)
    assert not_ready(running(state=PipelineState.STOPPING), now) == "stopping"
    assert "[slot_lost]" in not_ready(running(error=samples.error(code="slot_lost")), now)
    assert "last reported at" in not_ready(running(), now + timedelta(minutes=2))


def test_failed_pipeline_is_not_alive() -> None:
    """A restart is what a failed process needs."""
    with ProgressServer(lambda: running(state=PipelineState.FAILED)) as server:
        assert get(server, "/livez")[::2] == (503, "the pipeline is failed\n")


def test_a_snapshot_that_cannot_be_had_is_not_fatal() -> None:
    """The server answers 500 and goes on."""

    def broken() -> Progress:
        raise RuntimeError

    with ProgressServer(broken) as server:
        assert get(server, "/readyz")[0] == 500
        assert get(server, "/metrics")[0] == 500


def test_unknown_paths_and_methods() -> None:
    """Nothing else is served, and nothing can be posted to a server without verifications."""
    with ProgressServer(lambda: None) as server:
        assert get(server, "/other")[0] == 404
        assert get(server, "/../http.py")[0] == 404
        request = urllib.request.Request(server.address + "/readyz", data=b"x")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=LIMIT_S)


def test_openmetrics_for_who_asks_for_it() -> None:
    """The format follows Accept, as Prometheus sends it."""
    with ProgressServer(running) as server:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        _, content_type, body = get(server, "/metrics", Accept=accept)
        assert content_type.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")


def test_taken_port_says_what_to_do() -> None:
    """A port that is in use is an error with a hint, and no traceback."""
    with ProgressServer(lambda: None) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(NeedsOperator) as raised:
            ProgressServer(lambda: None, port=port)
        assert raised.value.code == "port_taken"
        assert "--port" in raised.value.hint
    with pytest.raises(NeedsOperator) as elsewhere:
        ProgressServer(lambda: None, host="192.0.2.1")
    assert "--host an address of this machine" in elsewhere.value.hint


def test_bound_to_loopback_unless_told_otherwise() -> None:
    """No other machine in the network can read a laptop's pipeline."""
    with ProgressServer(lambda: None) as server:
        assert server.address.startswith("http://127.0.0.1:")
    server.close()


@pytest.mark.parametrize(
    ("bound", "at"), [("::", ["127.0.0.1", "[::1]"]), ("::1", ["[::1]"]), ("0.0.0.0", ["127.0.0.1"])]
)
def test_addresses_of_both_kinds_are_served(bound: str, at: list[str]) -> None:
    """A pod has an address of IPv6 alone in some clusters. The published address is one of this machine."""
    with ProgressServer(running, host=bound) as server:
        port = server.address.rpartition(":")[2]
        for address in [f"http://{host}:{port}" for host in at] + [server.address]:
            with urllib.request.urlopen(f"{address}/v1/progress", timeout=LIMIT_S) as answer:
                assert answer.status == 200


def test_token_is_asked_for_progress_and_metrics(tmp_path: Path) -> None:
    """With a token, progress and metrics are for requests that have it. Probes need none, as a kubelet has none."""
    file = tmp_path / "token"
    file.write_text("one-two\n")
    with ProgressServer(running, token=AccessToken(file)) as server:
        for path in ("/v1/progress", "/v1/history", "/metrics", "/other"):
            status, _, body = get(server, path)
            assert (status, json.loads(body)["error"]["code"]) == (401, "token_required")
            assert get(server, path, Authorization="Bearer one")[0] == 401
            assert get(server, path, Authorization="Basic one-two")[0] == 401
        assert get(server, "/v1/progress", Authorization="Bearer one-two")[0] == 200
        assert get(server, "/metrics", Authorization="bearer one-two")[0] == 200
        assert get(server, "/livez")[0] == 200
        assert get(server, "/readyz")[0] == 200
        assert get(server, "/")[0] == 200, "the page asks for the token itself"


def test_changed_token_needs_no_restart(tmp_path: Path) -> None:
    """The file is read for each request. An empty or missing one admits no request."""
    file = tmp_path / "token"
    file.write_text("old")
    with ProgressServer(running, token=AccessToken(file)) as server:
        file.write_text("new")
        assert get(server, "/v1/progress", Authorization="Bearer old")[0] == 401
        assert get(server, "/v1/progress", Authorization="Bearer new")[0] == 200
        file.write_text("")
        assert get(server, "/v1/progress", Authorization="Bearer ")[0] == 401
        file.unlink()
        assert get(server, "/v1/progress", Authorization="Bearer new")[0] == 401


def test_each_response_has_the_headers_that_protect_the_page() -> None:
    """The page may load its own files and request its own server, and nothing else. No response is kept in a cache."""
    with ProgressServer(running) as server:
        for path in ("/", "/page.js", "/page.css", "/v1/progress", "/v1/history", "/metrics", "/livez", "/other"):
            try:
                answer = urllib.request.urlopen(server.address + path, timeout=LIMIT_S)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                policy = answer.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.headers["Cache-Control"] in ("no-store", "no-cache")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "[::1", "a b"]
)
def test_a_foreign_name_for_this_machine_is_refused(host: str) -> None:
    """A web page whose name resolves to loopback reads nothing and starts nothing (DNS rebinding)."""
    with ProgressServer(running, verifications=Verifications(never)) as server:
        for path in ("/", "/v1/progress", "/livez"):
            status, _, body = get(server, path, Host=host)
            assert (status, json.loads(body)["error"]["code"]) == (421, "host_refused")
        assert send(server, "POST", "/v1/verifications", b'{"tables": ["orders"]}', Host=host)[0] == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "shop.localhost:1", "127.0.0.1", "[::1]:80", "192.0.2.1:80"]
)
def test_names_of_this_machine_are_admitted(host: str) -> None:
    """An address cannot be another site's, so ``kubectl port-forward --address`` works too."""
    with ProgressServer(running) as server:
        assert get(server, "/v1/progress", Host=host)[0] == 200


def test_a_request_from_the_network_may_name_any_host() -> None:
    """The names of a cluster's services are not known to an engine."""
    assert foreign_host("driver.data.svc:8080", "10.0.0.7") is None
    assert foreign_host("driver.data.svc:8080", "::ffff:10.0.0.7") is None
    for loopback in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"):
        assert foreign_host("driver.data.svc:8080", loopback) is not None
        assert foreign_host("", loopback) is None, "no browser leaves the header out"


def test_a_large_response_is_compressed_for_those_who_accept_that() -> None:
    """The progress of many tables goes through slow tunnels. Small responses stay plain."""
    tables = [samples.table(f"t{i}", id=TableId(i)) for i in range(100)]
    progress = samples.progress(*tables, at=datetime.now(UTC))
    with ProgressServer(lambda: progress) as server:
        for path in ("/v1/progress", "/metrics", "/page.js"):
            plain = get(server, path)[2].encode()
            request = urllib.request.Request(server.address + path, headers={"Accept-Encoding": "br, gzip"})
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert answer.headers["Vary"] == "Accept-Encoding"
                body = answer.read()
            assert len(body) < len(plain) / 2
            assert gzip.decompress(body).splitlines()[:1] == plain.splitlines()[:1]
        request = urllib.request.Request(server.address + "/livez", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert answer.read() == b"ok\n"


def test_a_reader_who_goes_away_is_no_error(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A connection that is reset in the middle of a request is in the log with level debug alone."""
    with caplog.at_level(logging.DEBUG, "levada"), ProgressServer(running) as server:
        port = int(server.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as reader:
            reader.sendall(b"GET /livez")
            # The close is a reset then.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        found = until(lambda: [r for r in caplog.records if "connection of" in r.message])
    assert [r.levelno for r in found] == [logging.DEBUG]
    assert capfd.readouterr().err == ""


def never(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
    """Fail, because no verification may be started."""
    raise AssertionError


def send(server: ProgressServer, method: str, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, str]:
    """Return status and body of a request that changes something."""
    kind = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    request = urllib.request.Request(server.address + path, data=body, headers=kind, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_a_hint_of_a_verification_names_the_table() -> None:
    """A destination knows no names of the source. The command that is shown runs as printed."""

    def verify(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        raise DestinationChanged("table_damaged", "missing", hint="copy it again: levada resync MANIFEST TABLE")

    verifications = Verifications(verify)
    number = verifications.start(b'{"tables": ["public.orders"]}')["id"]
    document = until(lambda: verifications.state(number), lambda found: found is not None and found["finished"])
    assert document is not None
    assert document["tables"][0]["error"]["hint"] == "copy it again: levada resync MANIFEST public.orders"


def test_a_verification_is_started_watched_and_ended(tmp_path: Path) -> None:
    """One runs at a time. Its results are those of the tables so far, and errors are among them."""
    begun = threading.Event()

    def verify(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        if table.name == "orders":
            return TableReport(table, Lsn(1), Lsn(1), 2, 2, sample=options.sample)
        begun.set()
        assert cancelled.wait(LIMIT_S)
        raise Transient("verify_cancelled", "cancelled")

    with ProgressServer(running, verifications=Verifications(verify)) as server:
        body = b'{"tables": ["public.orders", "public.items"], "sample": 0.5}'
        assert send(server, "POST", "/v1/verifications", body, Content_Type="text/plain")[0] == 415
        status, text = send(server, "POST", "/v1/verifications", body)
        assert status == 202
        number = json.loads(text)["id"]
        path = f"/v1/verifications/{number}"
        assert begun.wait(LIMIT_S)
        status, text = send(server, "POST", "/v1/verifications", body)
        assert (status, json.loads(text)["error"]["code"]) == (409, "verify_running")
        assert "another verification runs" in text
        [first] = json.loads(get(server, path)[2])["tables"]
        assert (first["table"], first["equal"], first["sample"]) == ("public.orders", True, 0.5)
        assert send(server, "DELETE", path)[0] == 200
        until(lambda: json.loads(get(server, path)[2])["finished"])
        last = json.loads(get(server, path)[2])["tables"][-1]
        assert last["error"]["code"] == "verify_cancelled"
        status, _, text = get(server, f"{path}0")
        assert (status, json.loads(text)["error"]["code"]) == (404, "verify_unknown")
        assert send(server, "DELETE", f"{path}0")[0] == 404
        for invalid in (b"", b"[]", b'{"tables": []}', b'{"tables": ["t"], "sample": 0}', b'{"tables": ["t"], "x": 1}'):
            assert send(server, "POST", "/v1/verifications", invalid)[0] == 400
        assert send(server, "POST", "/v1/progress")[0] == 404


def test_a_verification_ends_after_its_client() -> None:
    """A client that asks for a lease and then for nothing more was killed. Another client need not wait for it.

    Also if the end of the first one takes long, because its tasks cannot be interrupted.
    """
    cancelled: list[bool] = []
    begun = threading.Event()

    def verify(table: QualifiedTable, options: VerifyOptions, event: threading.Event) -> TableReport:
        if table.name == "orders":
            cancelled.append(event.wait(LIMIT_S))
            begun.wait(LIMIT_S)
        begun.set()
        return TableReport(table, Lsn(1), Lsn(1), 2, 2)

    with ProgressServer(running, verifications=Verifications(verify, tick_s=0.05)) as server:
        first = b'{"tables": ["public.orders"], "leaseSeconds": 0.5}'
        assert send(server, "POST", "/v1/verifications", first)[0] == 202
        second = b'{"tables": ["public.items"]}'
        until(lambda: send(server, "POST", "/v1/verifications", second), lambda answer: answer[0] != 409)
        until(lambda: cancelled)
    assert cancelled == [True]


def test_engines_number_their_verifications_differently() -> None:
    """A client whose engine was started again gets no result of another client's verification."""

    def id_of(verifications: Verifications) -> int:
        return int(verifications.start(b'{"tables": ["public.orders"]}')["id"])

    assert id_of(Verifications(never)) != id_of(Verifications(never))


def test_a_verification_needs_the_token(tmp_path: Path) -> None:
    """Starting, reading and ending one need it."""
    file = tmp_path / "token"
    file.write_text("secret")
    with ProgressServer(running, token=AccessToken(file), verifications=Verifications(never)) as server:
        for method, path in (("POST", ""), ("DELETE", "/1")):
            assert send(server, method, f"/v1/verifications{path}")[0] == 401
        assert get(server, "/v1/verifications/1")[0] == 401
        assert send(server, "DELETE", "/v1/verifications/1", Authorization="Bearer secret")[0] == 404


def test_what_writes_or_returns_values_is_closed_to_others() -> None:
    """Without a token these requests are answered over loopback alone. What has no values is answered to all."""
    server = ProgressServer(running, verifications=Verifications(never))
    try:
        for method, path in (("POST", "/v1/verifications"), ("DELETE", "/v1/verifications/1"), ("POST", "/v1/cuts")):
            refused = server.change(method, path, "application/json", b"{}", local=False)
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (401, "token_required")
        assert server.respond("/v1/verifications/1", "", local=False).status == 401
        assert server.respond("/v1/verifications/1", "").status == 404
        assert server.change("POST", "/v1/verifications", "application/json", b"no JSON").status == 400
        for path in ("/livez", "/v1/progress", "/metrics", "/"):
            assert server.respond(path, "", local=False).status == 200
    finally:
        server.close()


def own_address() -> str:
    """Return an address of this machine by which another pod would reach it. The test is skipped without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: it chooses the address alone.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_another_pod_starts_nothing_and_reads_no_values(bound: str) -> None:
    """Over the network, by requests such as any pod can send where no plugin enforces policies. Loopback starts it."""
    started: list[QualifiedTable] = []

    def verify(table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        started.append(table)
        return TableReport(table, Lsn(1), Lsn(1), 2, 2)

    body = b'{"tables": ["public.orders"], "showValues": true, "repair": true}'
    asked = (("POST", "/v1/verifications"), ("GET", "/v1/verifications/1"), ("DELETE", "/v1/verifications/1"),
             ("POST", "/v1/cuts"), ("DELETE", "/v1/cuts/a"), ("POST", "/v1/erasures"))  # fmt: skip
    with ProgressServer(running, host=bound, verifications=Verifications(verify)) as server:
        port = server.address.rpartition(":")[2]

        def ask(host: str, method: str, path: str, **headers: str) -> int:
            kind = {"Content-Type": "application/json"} | headers
            content = None if method == "GET" else body
            request = urllib.request.Request(f"http://{host}:{port}{path}", content, kind, method=method)
            try:
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        host = own_address()
        assert {(method, path): ask(host, method, path) for method, path in asked} == dict.fromkeys(asked, 401)
        assert ask(host, *asked[0], Host="127.0.0.1", **{"X-Forwarded-For": "127.0.0.1"}) in (401, 421)
        assert ask(host, "GET", "/v1/progress") == 200
        assert not started
        assert ask("127.0.0.1", *asked[0]) == 202
        until(lambda: started)


def test_an_engine_refuses_a_command_without_its_token(tmp_path: Path) -> None:
    """The error of the command names the manifest's field, and the option that gives it the Secret."""
    (tmp_path / "token").write_text("long-and-random")
    with (
        ProgressServer(running, token=AccessToken(tmp_path / "token"), verifications=Verifications(never)) as server,
        pytest.raises(NeedsOperator) as refused,
    ):
        EngineApi(server.address, {}).ask("POST", "/v1/verifications", {"tables": ["public.orders"]})
    assert refused.value.code == "engine_refused"
    assert "spec.driver.tokenSecretRef" in refused.value.message
    assert "--secrets DIR" in refused.value.hint


def test_an_engine_refuses_an_unknown_request() -> None:
    """An engine of an older version, for example, has no verifications. The error says which request it was."""
    with ProgressServer(running) as server, pytest.raises(NeedsOperator) as refused:
        EngineApi(server.address, {}).ask("POST", "/v1/later", {})
    assert refused.value.code == "engine_refused"
    assert f"the engine at {server.address} refused the request POST /v1/later with status 405" in str(refused.value)


def test_an_engine_that_has_ended_is_unreachable() -> None:
    """A command that was connected to it fails with the advice to run again. The message has the address."""
    with ProgressServer(running) as server:
        address = server.address
    with pytest.raises(Transient) as away:
        EngineApi(address, {}).ask("GET", "/v1/cuts")
    assert away.value.code == "engine_unreachable"
    assert f"the engine does not answer at {address}/v1/cuts" in away.value.message
    assert "run the command again" in away.value.hint


def test_no_proxy_is_asked_for_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the environment leads to the internet, and cannot reach this machine's own addresses."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ProgressServer(running) as server, published_address(tmp_path, server.address):
        assert EngineApi(server.address, {}).ask("GET", "/v1/progress")["pipeline"] == running().pipeline
        found = running_progress(tmp_path)
    assert found is not None
    assert found.pipeline == running().pipeline


def test_an_engine_is_found_after_its_folder_was_removed(tmp_path: Path) -> None:
    """The address is written again, so that commands do not take the engine for one of another machine."""
    folder = tmp_path / "work"
    folder.mkdir()
    with ProgressServer(running) as server, published_address(folder, server.address):
        shutil.rmtree(folder)
        found = until(lambda: running_progress(folder))
    assert found is not None
    assert found.pipeline == running().pipeline
    assert running_progress(folder) is None


def test_cuts_are_listed_requested_and_dropped() -> None:
    """Requests reach the pipeline. Its refusals have their code, and a status by their kind."""
    asked: list[tuple[object, ...]] = []

    def request(name: str, partial: bool) -> None:
        if name == "late":
            raise Transient("engine_not_running", "it is starting")
        if name in ("noon", "main"):
            raise NeedsOperator("cut_exists" if name == "noon" else "cut_name_invalid", "no", hint="another name")
        asked.append((name, partial))

    def drop(name: str) -> None:
        asked.append((name,))

    pending = samples.cuts().pending
    assert pending is not None
    running_at = [True]

    def listed_cuts() -> list[CutProgress]:
        if not running_at[0]:
            raise Transient("engine_not_running", "it is starting")
        return [pending, pending]

    cuts = CutsApi(listed_cuts, request, drop)
    with ProgressServer(running, verifications=Verifications(never), cuts=cuts) as server:
        listed = json.loads(get(server, "/v1/cuts")[2])["cuts"]
        assert [cut["name"] for cut in listed] == ["mönthly", "mönthly"]
        for body, status in [
            ({"name": "a", "partial": True}, 202),
            ({"name": "b"}, 202),
            ({"name": "noon"}, 409),
            ({"name": "main"}, 400),
            ({"name": "late"}, 503),
            ({"name": 1}, 400),
            ({"name": "c", "other": 1}, 400),
            ({}, 400),
        ]:
            assert send(server, "POST", "/v1/cuts", json.dumps(body).encode())[0] == status, body
        assert send(server, "POST", "/v1/cuts", b"no json")[0] == 400
        assert send(server, "POST", "/v1/cuts", b'{"name": "a"}', Content_Type="text/plain")[0] == 415
        assert send(server, "DELETE", "/v1/cuts/m%C3%B6nthly%2F1")[0] == 202
        assert send(server, "DELETE", "/v1/cuts")[0] == 404
        running_at[0] = False
        assert get(server, "/v1/cuts")[0] == 503
        assert asked == [("a", True), ("b", False), ("mönthly/1",)]
