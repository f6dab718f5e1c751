"""BigQuery's REST API: datasets, tables and query jobs. Each call has a time limit."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.failures import UNAVAILABLE, AlreadyExistsError, NotFoundError, failure, unanswered
from levada.destinations.bigquery.names import TableName
from levada.errors import LoginFailed, NeedsOperator, Transient

if TYPE_CHECKING:
    import requests

_CALL_S: Final = (10, 60)
"""Seconds until a connection is made, and until an answer begins."""
_POLL_MS: Final = 20_000
JOB_S: Final = 6 * 3600
"""Seconds after which a query job is cancelled. It is BigQuery's own limit."""
_LOST_S: Final = 120
"""Seconds for which a job is asked for again after a connection failed."""


QUERY_BYTES: Final = 1 << 20
"""BigQuery's limit of an "unresolved" query: https://cloud.google.com/bigquery/quotas#query_jobs"""


def check_length(what: str, sql: str) -> None:
    """Raise NeedsOperator ``query_too_large`` if BigQuery would refuse a query or script for its length."""
    size = len(sql.encode())
    if size > QUERY_BYTES:
        raise NeedsOperator(
            "query_too_large",
            f"{what}: the statements name so many columns that they have {size} bytes, and BigQuery accepts"
            f" {QUERY_BYTES}",
            hint="exclude columns with columns.exclude in the table's TableSync, or give them shorter names."
            " If the table has few columns, reduce spec.batch.maxBytes",
        )


class RestClient:
    """A client of one project. Thread-safe."""

    def __init__(self, connection: Connection, project: str, location: str) -> None:
        self._connection = connection
        self._project = project
        self._location = location
        self._base = f"{connection.rest}/bigquery/v2/projects/{quote(project, safe=':')}"
        self._local = threading.local()
        self._sessions: list[requests.Session] = []

    def close(self) -> None:
        """Close all connections."""
        while self._sessions:
            self._sessions.pop().close()

    # -- datasets and tables

    def ensure_dataset(self, dataset: str) -> None:
        """Create the dataset, unless it exists."""
        if self.dataset(dataset) is None:
            body = {"datasetReference": {"projectId": self._project, "datasetId": dataset}, "location": self._location}
            try:
                self._call(f"create dataset {dataset}", "POST", "/datasets", body)
            except AlreadyExistsError:
                return

    def dataset(self, dataset: str) -> Mapping[str, Any] | None:
        """Return the dataset's resource, or None if there is none."""
        return self._call_or_none(f"read dataset {dataset}", "GET", f"/datasets/{dataset}")

    def table(self, name: TableName) -> Mapping[str, Any] | None:
        """Return the table's resource, or None if there is none."""
        return self._call_or_none(f"read {name}", "GET", _path(name))

    def create_table(self, name: TableName, resource: Mapping[str, Any]) -> None:
        """Create a table. Raise AlreadyExistsError if there is one."""
        reference = {"projectId": name.project, "datasetId": name.dataset, "tableId": name.name}
        body = {**resource, "tableReference": reference}
        self._call(f"create {name}", "POST", f"/datasets/{name.dataset}/tables", body)

    def drop_table(self, name: TableName) -> None:
        """Drop a table. A missing one is no error."""
        self._call_or_none(f"drop {name}", "DELETE", _path(name))

    def columns(self, name: TableName) -> dict[str, str]:
        """Return the types of a table's columns by name in lower case. Raise NotFoundError if there is no table.

        A dry run knows what an ALTER TABLE did as soon as it has ended, and costs nothing.
        """
        query = {"query": f"SELECT * FROM {name.sql}", "useLegacySql": False}
        reference = {"projectId": self._project, "location": self._location}
        body = {"jobReference": reference, "configuration": {"dryRun": True, "query": query}}
        found = self._call(f"read the columns of {name}", "POST", "/jobs", body)
        _raise_failed(f"read the columns of {name}", found, has_rows=False)
        fields = found.get("statistics", {}).get("query", {}).get("schema", {}).get("fields", ())
        return {f["name"].lower(): f["type"] for f in fields}

    # -- queries

    def query(self, what: str, sql: str, *, has_rows: bool = True) -> list[list[Any]]:
        """Run a statement or a script, and return the rows of its last statement.

        ``what`` names it in errors. ``has_rows`` is False if an error of BigQuery cannot contain a value of a row.
        Raise NotFoundError if it names a missing table, and NeedsOperator ``query_too_large`` for a text above
        BigQuery's limit. After Transient, the job may have succeeded.
        """
        check_length(what, sql)
        job = f"levada_{uuid.uuid4().hex}"
        body = {
            "jobReference": {"projectId": self._project, "jobId": job, "location": self._location},
            "configuration": {
                "jobTimeoutMs": str(JOB_S * 1000),
                "labels": {"levada": "1"},
                "query": {"query": sql, "useLegacySql": False, "useQueryCache": False},
            },
        }
        self._start(what, body, has_rows=has_rows)
        return self._finish(f"{what} (job {job})", job, has_rows=has_rows)

    def _start(self, what: str, body: Mapping[str, Any], *, has_rows: bool) -> None:
        until = time.monotonic() + _LOST_S
        while True:
            try:
                started = self._call(what, "POST", "/jobs", body, has_rows=has_rows)
            except AlreadyExistsError:
                # The answer to an earlier attempt was lost.
                return
            except Transient as error:
                # The job's ID makes the call idempotent. A refusal is for the engine, which backs off.
                if error.__cause__ is None or time.monotonic() >= until:
                    raise
                time.sleep(1)
                continue
            _raise_failed(what, started, has_rows=has_rows)
            return

    def _finish(self, what: str, job: str, *, has_rows: bool) -> list[list[Any]]:
        until, lost = time.monotonic() + JOB_S + 600, time.monotonic() + _LOST_S
        path = f"/queries/{job}?location={quote(self._location)}&timeoutMs={_POLL_MS}"
        while True:
            try:
                found = self._call(what, "GET", path, has_rows=has_rows)
            except Transient as error:
                if error.__cause__ is None or time.monotonic() >= lost:
                    raise
                time.sleep(1)
                continue
            lost = time.monotonic() + _LOST_S
            if found.get("jobComplete", True):
                return [[cell["v"] for cell in row["f"]] for row in found.get("rows", ())]
            if time.monotonic() >= until:
                raise Transient("destination_unavailable", f"{what}: the job does not end", hint=UNAVAILABLE)

    # -- calls

    def _call_or_none(self, what: str, method: str, path: str) -> Mapping[str, Any] | None:
        try:
            return self._call(what, method, path)
        except NotFoundError:
            return None

    def _call(
        self, what: str, method: str, path: str, body: Mapping[str, Any] | None = None, *, has_rows: bool = False
    ) -> Mapping[str, Any]:
        import requests
        from google.auth.exceptions import RefreshError, TransportError

        try:
            answer = self._session().request(method, self._base + path, json=body, timeout=_CALL_S)
        except RefreshError as error:
            raise LoginFailed(
                "destination_login_failed",
                f"{what}: the credentials give no access token: {type(error).__name__}",
                hint="check the Secret of spec.destination.bigquery.credentialsSecretRef, or the pod's identity",
            ) from None
        except (requests.RequestException, TransportError) as error:
            raise unanswered(what, error) from error
        if answer.ok:
            found: Mapping[str, Any] = answer.json() if answer.content else {}
            return found
        reason, message = _reason(answer)
        raise failure(what, answer.status_code, reason, message, has_rows=has_rows)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self._connection.session()
            self._sessions.append(session)
        return session


def _path(name: TableName) -> str:
    return f"/datasets/{name.dataset}/tables/{quote(name.name, safe='')}"


def _reason(answer: requests.Response) -> tuple[str, str]:
    try:
        error = answer.json()["error"]
        first = (error.get("errors") or [{}])[0]
        return str(first.get("reason", "")), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", answer.reason or ""


def _raise_failed(what: str, job: Mapping[str, Any], *, has_rows: bool) -> None:
    error = job.get("status", {}).get("errorResult")
    if error:
        raise failure(what, 0, str(error.get("reason", "")), str(error.get("message", "")), has_rows=has_rows)
