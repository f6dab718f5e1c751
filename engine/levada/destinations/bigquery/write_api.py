"""BigQuery's Storage Write API: rows as Arrow in PENDING streams, which are visible after one commit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.failures import UNAVAILABLE, AlreadyExistsError, NotFoundError, failure
from levada.destinations.bigquery.names import TableName
from levada.errors import LevadaError, NeedsOperator, Transient

if TYPE_CHECKING:
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

_REQUEST_BYTES: Final = 8 << 20
"""The size of the rows in a request. BigQuery's limit for a request is 10 MB."""
_LARGEST_BYTES: Final = 9_900_000
_IN_FLIGHT: Final = 4
"""The number of requests that are sent before an answer is read."""
_CALL_S: Final = 60.0
_ANSWER_S: Final = 300.0
"""Seconds until a request's rows are acknowledged."""
_STREAM_S: Final = 12 * 3600.0
"""Seconds for which one stream is written. BigQuery ends an idle connection itself."""
_NEW_TABLE_S: Final = 60.0
"""Seconds for which the API may not know a new table yet."""


@dataclass(frozen=True, slots=True)
class WrittenStream:
    """A finalized stream. Its rows are not visible yet."""

    name: str
    rows: int


@contextmanager
def write_client(connection: Connection) -> Iterator[BigQueryWriteClient]:
    """Open a client, and close it.

    Its own retries last for 20 minutes, so no call uses them. The engine retries Transient.
    """
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
    from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

    transport = BigQueryWriteGrpcTransport(channel=connection.channel())
    try:
        yield BigQueryWriteClient(transport=transport)
    finally:
        transport.close()


@contextmanager
def api_errors(what: str, *, may_be_missing: bool = False) -> Iterator[None]:
    """Convert errors of the API to Levada's errors. Its messages may contain values, so they are left out.

    A missing table or stream is Transient, because staging tables expire, or NotFoundError if ``may_be_missing``.
    """
    import grpc
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except LevadaError:
        raise
    except RetryError as error:
        raise Transient("destination_unavailable", f"{what}: no answer in time", hint=UNAVAILABLE) from error
    except GoogleAPICallError as error:
        raise _failure(what, _name(error.grpc_status_code), may_be_missing) from None
    except grpc.RpcError as error:
        status = error.code() if isinstance(error, grpc.Call) else None
        raise _failure(what, _name(status), may_be_missing) from None
    except GoogleAuthError as error:
        raise failure(what, 401, type(error).__name__, "") from None


_HTTP: Final = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
}


def _failure(what: str, status: str, may_be_missing: bool = False) -> LevadaError:
    error = failure(what, _HTTP.get(status, 500), status, "", has_rows=True)
    if isinstance(error, AlreadyExistsError) or (isinstance(error, NotFoundError) and not may_be_missing):
        return Transient("destination_unavailable", f"{what}: {status}", hint=UNAVAILABLE)
    return error


def _name(status: Any) -> str:
    return "" if status is None else str(status.name)


class StreamWriter:
    """Appends rows to a new PENDING stream of a table. It is a context manager.

    A stream that is not committed is never visible, and BigQuery removes it.
    """

    def __init__(self, client: BigQueryWriteClient, table: TableName, schema: pa.Schema) -> None:
        self._client = client
        self._table = table
        self._schema = schema
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: Any = None
        self._waiting = self._rows = 0
        self._name = ""

    def __enter__(self) -> StreamWriter:
        self._name = self._create()
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        if self._answers is not None:
            self._answers.cancel()

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows with the columns of the schema. Raise NeedsOperator ``row_too_large`` for a row above 10 MB."""
        batches = rows.combine_chunks().to_batches() if isinstance(rows, pa.Table) else [rows]
        for batch in batches:
            for part, data in _parts(batch, self._table):
                self._send(part, data)

    def finish(self) -> WrittenStream:
        """Wait for all acknowledgements, and finalize the stream."""
        while self._waiting:
            self._receive()
        with api_errors(f"finalize a stream of {self._table}"):
            found = self._client.finalize_write_stream(name=self._name, timeout=_CALL_S, retry=None)
        if found.row_count != self._rows:
            raise Transient("destination_unavailable", f"a stream of {self._table} lacks rows", hint=UNAVAILABLE)
        return WrittenStream(self._name, self._rows)

    def _create(self) -> str:
        from google.cloud.bigquery_storage_v1 import types

        until = time.monotonic() + _NEW_TABLE_S
        while True:
            try:
                with api_errors(f"create a stream of {self._table}", may_be_missing=True):
                    pending = types.WriteStream(type_=types.WriteStream.Type.PENDING)
                    made = self._client.create_write_stream(
                        parent=self._table.path, write_stream=pending, timeout=_CALL_S, retry=None
                    )
                    return str(made.name)
            except NotFoundError as error:
                if time.monotonic() >= until:
                    raise Transient("destination_unavailable", str(error), hint=UNAVAILABLE) from error
                time.sleep(1)

    def _send(self, rows: int, data: bytes) -> None:
        from google.cloud.bigquery_storage_v1 import types

        arrow = types.AppendRowsRequest.ArrowData(rows=types.ArrowRecordBatch(serialized_record_batch=data))
        request = types.AppendRowsRequest(offset=self._rows, arrow_rows=arrow)
        if self._answers is None:
            request.write_stream = self._name
            request.trace_id = "levada"
            arrow_schema = types.ArrowSchema(serialized_schema=self._schema.serialize().to_pybytes())
            request.arrow_rows.writer_schema = arrow_schema
            # The client waits for the first answer when the call begins.
            self._requests.put(request)
            self._open()
        else:
            # The emulator wants the name in each request. BigQuery allows it.
            request.write_stream = self._name
            self._requests.put(request)
        self._rows += rows
        self._waiting += 1
        if self._waiting >= _IN_FLIGHT:
            self._receive()

    def _open(self) -> None:
        # The routing header is that of the API's reference. The generated client does not add it.
        header = ("x-goog-request-params", f"write_stream={self._name}")
        with api_errors(f"append to {self._table}"):
            self._answers = self._client.append_rows(
                iter(self._requests.get, None), metadata=(header,), timeout=_STREAM_S, retry=None
            )

    def _receive(self) -> None:
        limit = threading.Timer(_ANSWER_S, self._answers.cancel)
        limit.start()
        try:
            with api_errors(f"append to {self._table}"):
                answer = next(self._answers, None)
        finally:
            limit.cancel()
        if answer is None:
            raise Transient("destination_unavailable", f"append to {self._table}: the stream ended", hint=UNAVAILABLE)
        self._waiting -= 1
        if answer.error.code:
            # Its message and the errors of rows may contain values.
            import grpc

            code = next((c.name for c in grpc.StatusCode if c.value[0] == answer.error.code), "")
            raise _failure(f"append to {self._table}", code)


def commit(connection: Connection, table: TableName, streams: Sequence[WrittenStream]) -> None:
    """Make the rows of the streams visible, all in one step."""
    from google.cloud.bigquery_storage_v1 import types

    if not streams:
        return
    request = types.BatchCommitWriteStreamsRequest(parent=table.path, write_streams=[s.name for s in streams])
    what = f"commit the rows of {table}"
    with write_client(connection) as client, api_errors(what):
        answer = client.batch_commit_write_streams(request=request, timeout=_ANSWER_S, retry=None)
    if answer.stream_errors:
        code = answer.stream_errors[0].code.name
        raise Transient("destination_unavailable", f"{what}: {code}", hint=UNAVAILABLE)


def _parts(batch: pa.RecordBatch, table: TableName) -> Iterator[tuple[int, bytes]]:
    """Yield the number of rows and the serialized rows of parts that fit into a request."""
    if not batch.num_rows:
        return
    data = batch.serialize().to_pybytes() if batch.nbytes <= _LARGEST_BYTES else b""
    if data and len(data) <= (_REQUEST_BYTES if batch.num_rows > 1 else _LARGEST_BYTES):
        yield batch.num_rows, data
        return
    if batch.num_rows == 1:
        raise NeedsOperator(
            "row_too_large",
            f"a row for {table} is larger than the 10 MB that BigQuery takes",
            hint="exclude its largest column with columns.exclude in the table's TableSync",
        )
    middle = batch.num_rows // 2
    yield from _parts(batch.slice(0, middle), table)
    yield from _parts(batch.slice(middle), table)
