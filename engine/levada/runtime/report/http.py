"""One port for probes, progress and metrics. Answers from a snapshot of progress and touches nothing else."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

from prometheus_client.exposition import choose_encoder

from levada.errors import NeedsOperator
from levada.runtime.progress import PipelineState, Progress
from levada.runtime.report.access_token import AccessToken
from levada.runtime.report.liveness import Liveness
from levada.runtime.report.metrics import registry

_log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
_OBSERVE_S: Final = 10.0
_PROBES: Final = ("/livez", "/readyz")
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    status: HTTPStatus
    content_type: str
    body: bytes


class ProgressServer:
    """Serves ``/livez``, ``/readyz``, ``/v1/progress`` and ``/metrics``; a context manager.

    ``progress`` returns a snapshot, None before there is a pipeline; it is called from several threads. Port 0 takes a
    free one. With a ``token``, progress and metrics are only for requests that have it. Raise NeedsOperator
    ``port_taken`` if the address cannot be bound.
    """

    def __init__(
        self,
        progress: Callable[[], Progress | None],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        progress_deadline_s: float = 900.0,
        token: AccessToken | None = None,
    ) -> None:
        self._token = token
        self._progress = progress
        self._registry = registry(progress)
        self._liveness = Liveness(progress_deadline_s)
        self._closed = threading.Event()
        try:
            self._server = _Server((host, port), self.answer)
        except OSError as e:
            raise NeedsOperator(
                "port_taken",
                f"cannot listen on {host}:{port}: {e.strerror}",
                hint="choose another with --port, or any free one with --port 0",
            ) from None
        self._threads = (
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="levada-http", daemon=True),
            threading.Thread(target=self._observe, name="levada-liveness", daemon=True),
        )

    def set_progress_deadline(self, seconds: float) -> None:
        """Let ``/livez`` fail after so many seconds without progress from now on."""
        self._liveness.deadline_s = seconds

    @property
    def address(self) -> str:
        """The URL that this answers on, without a slash at its end."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> Self:
        """Answer from now on, in threads of its own."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop answering; not an error if closed already."""
        if not self._closed.is_set():
            self._closed.set()
            if self._threads[0].is_alive():
                self._server.shutdown()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def answer(self, path: str, accept: str, authorization: str = "") -> Answer:
        """Return what a GET of this path is answered with."""
        plain = path.partition("?")[0]
        if self._token is not None and plain not in _PROBES and not self._token.admits(authorization):
            return Answer(HTTPStatus.UNAUTHORIZED, _TEXT, b"this driver answers only with its token\n")
        progress = self._progress()
        match plain:
            case "/livez":
                return _verdict(self._liveness.observe(progress, datetime.now(UTC)))
            case "/readyz":
                return _verdict(not_ready(progress))
            case "/v1/progress" if progress is not None:
                return Answer(HTTPStatus.OK, _JSON, json.dumps(progress.to_json()).encode())
            case "/v1/progress":
                return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _JSON, b'{"state": "Starting"}')
            case "/metrics":
                encode, content_type = choose_encoder(accept)
                return Answer(HTTPStatus.OK, content_type, encode(self._registry))
        return Answer(HTTPStatus.NOT_FOUND, _TEXT, b"try /livez, /readyz, /v1/progress or /metrics\n")

    def _observe(self) -> None:
        # Nobody may ask for /livez for hours; what it then compares with must not be that old.
        while not self._closed.wait(_OBSERVE_S):
            self._liveness.observe(self._progress(), datetime.now(UTC))


def not_ready(progress: Progress | None) -> str:
    """Return why the engine is not ready, empty if it is.

    It is ready while it runs without an error that stops it, its stream is open and answers, and its slot is in use.
    """
    if progress is None:
        return "starting"
    if progress.error is not None:
        return f"{progress.error.reason} [{progress.error.code}]"
    if progress.state is not PipelineState.RUNNING:
        return progress.state.value.lower()
    if progress.store_error is not None:
        return f"{progress.store_error.reason} [{progress.store_error.code}]"
    if not progress.capture.connected:
        return "the replication stream is not open, or the server does not answer on it"
    if progress.slot.active is False:
        return f"slot {progress.slot.name} is not active"
    return ""


def _verdict(reason: str) -> Answer:
    if reason:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode())
    return Answer(HTTPStatus.OK, _TEXT, b"ok\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[str, str, str], Answer]) -> None:
        self.answer = answer
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    server_version = "levada"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self._answer()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> Answer:
        try:
            return self.server.answer(self.path, self.headers.get("Accept", ""), self.headers.get("Authorization", ""))
        except Exception:
            _log.exception("cannot answer %s", self.path.partition("?")[0])
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"the log says why\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        _log.debug(format, *args)
