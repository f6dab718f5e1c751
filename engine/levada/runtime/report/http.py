"""The HTTP server for probes, progress, metrics and the page. It answers from the newest progress snapshot alone.

It uses ``http.server``, because the engine consists of threads. aiohttp needs an event loop, and is installed only with
kopf, which an engine on a laptop does not have.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client.exposition import choose_encoder

from levada import codes
from levada.errors import NeedsOperator
from levada.runtime.report.access_token import AccessToken
from levada.runtime.report.cuts_api import CUTS, CutsApi
from levada.runtime.report.erasures import ErasuresApi
from levada.runtime.report.history import SAMPLE_EVERY_S, FigureHistory
from levada.runtime.report.host_header import foreign_host, is_loopback
from levada.runtime.report.liveness import Liveness
from levada.runtime.report.metrics import registry
from levada.runtime.report.page import page_files
from levada.runtime.report.responses import (
    HEADERS,
    JSON,
    Response,
    compressed,
    error_response,
    json_response,
    part_response,
    text_response,
)
from levada.runtime.report.verifications import Verifications
from levada.status import History, PipelineState, Progress
from levada.values import PipelineOwner, age_of

_log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
_EACH: Final = "::"
_EACH_OF_IPV4: Final = "0.0.0.0"
_PROBES: Final = ("/livez", "/readyz")
REQUESTER: Final = "Levada-Pipeline-UID"
"""The header with the UID of the Pipeline that a command acts for."""
_VERIFICATIONS: Final = "/v1/verifications"
_MAX_BODY: Final = 1 << 20
_READY_FOR: Final = timedelta(minutes=1)
"""The age of a progress that says nothing about the present any more."""


class ProgressServer:
    """Serves ``/livez``, ``/readyz``, ``/v1/progress``, ``/v1/history``, ``/metrics`` and the page. A context manager.

    ``progress`` returns the newest snapshot, or None before there is a pipeline. It is called from several threads.
    The host ``::`` is each address of the machine, of IPv4 too. Port 0 takes a free one. With a ``token``, everything
    requires it but the probes and the files of the page. Raises NeedsOperator ``port_taken`` if the address cannot be
    bound.

    With ``verifications``, a POST to ``/v1/verifications`` starts one, a GET of ``/v1/verifications/N`` returns its
    state, and a DELETE ends it. With ``cuts``, a GET of ``/v1/cuts`` lists the cuts, a POST requests one, and a DELETE
    of ``/v1/cuts/NAME`` drops it. With ``erasures``, a POST to ``/v1/erasures`` starts one, and a GET of
    ``/v1/erasures/N`` returns its state. ``owner`` returns the Pipeline that the engine runs for, None before it has
    one. A request that changes something for another Pipeline is refused.
    """

    def __init__(
        self,
        progress: Callable[[], Progress | None],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        progress_deadline_s: float = 900.0,
        token: AccessToken | None = None,
        verifications: Verifications | None = None,
        cuts: CutsApi | None = None,
        erasures: ErasuresApi | None = None,
        owner: Callable[[], PipelineOwner | None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._token = token
        self._verifications = verifications
        self._cuts = cuts
        self._erasures = erasures
        self._progress = progress
        self._registry = registry(progress)
        self._liveness = Liveness(progress_deadline_s)
        self._history = History()
        self._closed = threading.Event()
        try:
            self._server = _Server((host, port), self.respond, self.change)
        except OSError as e:
            raise NeedsOperator(
                "port_taken",
                f"cannot listen on {host}:{port}: {e.strerror}",
                hint="choose another port with --port PORT or any free one with --port 0, and for --host an address of"
                " this machine",
            ) from None
        self._threads = (
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="levada-http", daemon=True),
            threading.Thread(target=self._observe, name="levada-liveness", daemon=True),
        )

    def set_progress_deadline(self, seconds: float) -> None:
        """Set the seconds without progress after which ``/livez`` fails. Takes effect with the next request."""
        self._liveness.deadline_s = seconds

    @property
    def address(self) -> str:
        """The base URL of the server on this machine, without a trailing slash."""
        host, port = self._server.server_address[:2]
        host = LOOPBACK if host in (_EACH, _EACH_OF_IPV4) else str(host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> Self:
        """Start the threads that answer requests and watch liveness, and return the server."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop answering and free the port. May be called again."""
        if not self._closed.is_set():
            self._closed.set()
            if self._threads[0].is_alive():
                self._server.shutdown()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def respond(self, path: str, accept: str, authorization: str = "", *, local: bool = True) -> Response:
        """Return the response to a GET of ``path``.

        ``accept`` and ``authorization`` are the values of these headers. ``accept`` selects the format of the metrics.
        ``local`` is True for a request over loopback.
        """
        plain = path.partition("?")[0]
        if (file := page_files().get(plain)) is not None:
            return file
        if plain not in _PROBES and (refused := self._unauthorized(authorization)) is not None:
            return refused
        progress = self._progress()
        if self._verifications is not None and (number := _number(plain)) is not None:
            if (refused := self._closed_to_others(local)) is not None:
                return refused
            return _verification_response(self._verifications.state(number))
        if self._erasures is not None and (erasing := self._erasures.state(plain)) is not None:
            return self._closed_to_others(local) or erasing
        if self._cuts is not None and plain == CUTS:
            return self._cuts.list()
        match plain:
            case "/livez":
                return _probe_response(self._liveness.observe(progress, datetime.now(UTC)))
            case "/readyz":
                return _probe_response(not_ready(progress, datetime.now(UTC)))
            case "/v1/progress" if progress is not None:
                return part_response(progress)
            case "/v1/progress":
                return json_response({"state": PipelineState.STARTING}, HTTPStatus.SERVICE_UNAVAILABLE)
            case "/v1/history":
                return part_response(self._history)
            case "/metrics":
                encode, content_type = choose_encoder(accept)
                return Response(HTTPStatus.OK, content_type, encode(self._registry))
        return text_response(HTTPStatus.NOT_FOUND, "try /, /livez, /readyz, /v1/progress, /v1/history or /metrics")

    def change(
        self,
        method: str,
        path: str,
        content_type: str,
        body: bytes,
        authorization: str = "",
        *,
        local: bool = True,
        requester: str = "",
    ) -> Response:
        """Return the response to a POST or a DELETE. A request without a JSON body's content type is refused.

        ``requester`` is the UID of the Pipeline that the request is for, empty if it names none. Without a token, a
        request that does not come over loopback is refused too: no other sender is known to be admitted.

        A browser sends that content type to another site only after it has asked, and this server never allows it.
        """
        if (refused := self._unauthorized(authorization) or self._closed_to_others(local)) is not None:
            return refused
        if self._verifications is None:
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "this server answers GET alone")
        if content_type.partition(";")[0].strip() != JSON:
            return text_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type must be {JSON}")
        if (stranger := self._of_another_pipeline(requester)) is not None:
            return stranger
        if self._cuts is not None and (answer := self._cuts.change(method, path, body)) is not None:
            return answer
        if self._erasures is not None and (answer := self._erasures.change(method, path, body)) is not None:
            return answer
        try:
            if method == "POST" and path == _VERIFICATIONS:
                return json_response(self._verifications.start(body), HTTPStatus.ACCEPTED)
            if method == "DELETE" and (number := _number(path)) is not None:
                return _verification_response(self._verifications.cancel(number))
        except NeedsOperator as error:
            status = HTTPStatus.CONFLICT if error.code == codes.VERIFY_RUNNING else HTTPStatus.BAD_REQUEST
            return error_response(status, error)
        return text_response(HTTPStatus.NOT_FOUND, f"try {_VERIFICATIONS} or {CUTS}")

    def _unauthorized(self, authorization: str) -> Response | None:
        """Return the response to a request that lacks the token, or None if the request is admitted."""
        if self._token is None or self._token.admits(authorization):
            return None
        error = NeedsOperator(
            "token_required",
            "this request needs the driver's bearer token",
            hint="send the token of spec.driver.tokenSecretRef: levada status MANIFEST does, with --secrets DIR",
        )
        return error_response(HTTPStatus.UNAUTHORIZED, error, ("WWW-Authenticate", "Bearer"))

    def _of_another_pipeline(self, requester: str) -> Response | None:
        """Return the response to a request for another Pipeline than the engine's, None for any other request."""
        owner = self._owner()
        if not requester or owner is None or owner.uid == requester:
            return None
        error = NeedsOperator(
            "not_the_owner",
            f"the engine that uses this work folder belongs to {owner}, and the manifest is that of UID {requester}",
            hint="use the manifest of that Pipeline, or a work folder for this one alone: --work-dir DIR",
        )
        return error_response(HTTPStatus.CONFLICT, error)

    def _closed_to_others(self, local: bool) -> Response | None:
        """Return the response to a request that writes or returns values without a token or loopback, else None."""
        if local or self._token is not None:
            return None
        error = NeedsOperator(
            "token_required",
            "a request that writes, or returns values, needs a token or comes over loopback",
            hint="send it through kubectl port-forward, or set spec.driver.tokenSecretRef",
        )
        return error_response(HTTPStatus.UNAUTHORIZED, error, ("WWW-Authenticate", "Bearer"))

    def _observe(self) -> None:
        # There may be no request of /livez for hours. The snapshot that the next one is compared with must be recent.
        figures = FigureHistory()
        while not self._closed.wait(SAMPLE_EVERY_S):
            try:
                progress = self._progress()
                self._liveness.observe(progress, datetime.now(UTC))
                if progress is not None:
                    # Figures that are not published again grow by the clock, and so do the plots.
                    figures.add(replace(progress, at=datetime.now(UTC)))
                    self._history = figures.document()
            except Exception:
                _log.exception("the progress could not be observed")


def not_ready(progress: Progress | None, now: datetime) -> str:
    """Return the reason why the engine is not ready, or an empty string if it is ready.

    It is ready while the pipeline runs, neither the pipeline nor its store has an error, the replication stream is
    connected, the slot is not known to be inactive, and the tables' progress is published.
    """
    if progress is None:
        return "starting"
    if progress.error is not None:
        return f"{progress.error.reason} [{progress.error.code}]"
    if progress.state is not PipelineState.RUNNING:
        return progress.state.lower()
    if progress.store.error is not None:
        return f"{progress.store.error.reason} [{progress.store.error.code}]"
    if not progress.capture.connected:
        return "the replication stream is not open, or the server does not answer on it"
    if progress.slot.active is False:
        return f"slot {progress.slot.name} is not active"
    if age_of(progress.at, now) >= _READY_FOR:
        return f"progress was last reported at {progress.at.isoformat(timespec='seconds')}"
    return ""


def _probe_response(reason: str) -> Response:
    return text_response(HTTPStatus.SERVICE_UNAVAILABLE, reason) if reason else text_response(HTTPStatus.OK, "ok")


def _verification_response(document: Mapping[str, Any] | None) -> Response:
    if document is None:
        unknown = NeedsOperator(
            "verify_unknown",
            "the engine has no such verification, because it was started again since",
            hint="request the verification again",
        )
        return error_response(HTTPStatus.NOT_FOUND, unknown)
    return json_response(document)


def _number(path: str) -> int | None:
    """Return the number of the verification that a path names, or None."""
    folder, _, number = path.rpartition("/")
    return int(number) if folder == _VERIFICATIONS and number.isascii() and number.isdigit() else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        respond: Callable[..., Response],
        change: Callable[..., Response],
    ) -> None:
        self.respond = respond
        self.change = change
        host, port = address
        if host == _EACH and not socket.has_dualstack_ipv6():
            host = _EACH_OF_IPV4
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the address, without the question to the DNS for its name that HTTPServer has."""
        if self.server_address[0] == _EACH:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error of a connection. Of a reader that went away only with level debug, as it is no problem here."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "connection of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    server_version = "levada"
    sys_version = ""

    def do_GET(self) -> None:
        accept, given = self._header("Accept"), self._authorization
        self._send(self._answer(lambda: self.server.respond(self.path, accept, given, local=self._local)))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self._send(self._answer(self._change))

    def do_DELETE(self) -> None:
        self.do_POST()

    def _change(self) -> Response:
        size = self._header("Content-Length") or "0"
        if not size.isascii() or not size.isdigit() or int(size) > _MAX_BODY:
            self.close_connection = True
            return text_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too large")
        body, kind = self.rfile.read(int(size)), self._header("Content-Type")
        requester = self._header(REQUESTER)
        return self.server.change(
            self.command, self.path, kind, body, self._authorization, local=self._local, requester=requester
        )

    def _send(self, answer: Response) -> None:
        response = compressed(answer, self._header("Accept-Encoding"))
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", response.cache)
        for name, value in (*HEADERS.items(), *response.headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    @property
    def _authorization(self) -> str:
        return self._header("Authorization")

    @property
    def _local(self) -> bool:
        """True for a request over loopback, as kubectl exec and port-forward make it."""
        return is_loopback(str(self.client_address[0]))

    def _header(self, name: str) -> str:
        return str(self.headers.get(name, ""))

    def _answer(self, respond: Callable[[], Response]) -> Response:
        foreign = foreign_host(self._header("Host"), str(self.connection.getsockname()[0]))
        if foreign is not None:
            self.close_connection = True
            return error_response(HTTPStatus.MISDIRECTED_REQUEST, foreign)
        try:
            return respond()
        except Exception:
            _log.exception("request of %s failed", self.path.partition("?")[0])
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the driver's log")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        _log.debug(format, *args)
