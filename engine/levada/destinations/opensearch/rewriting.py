"""The copy of all documents to the next generation, with changed fields, by the cluster itself (``_reindex``).

The documents keep their versions, so the same documents may be written repeatedly. The copy is complete when both
indices have the same number of documents.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from levada.destinations.opensearch.client import UNAVAILABLE, Client, NotFound
from levada.destinations.opensearch.evolution import Evolution
from levada.destinations.opensearch.generations import Generation, Generations
from levada.destinations.opensearch.naming import writer_alias
from levada.errors import LevadaError, Transient

_SCRIPT: Final = """
Map found = new LinkedHashMap();
for (Map.Entry e : ctx._source.entrySet()) {
  if (params.names.containsKey(e.getKey())) { found.put(params.names.get(e.getKey()), e.getValue()); }
}
found.putAll(params.constants);
ctx._source.clear();
ctx._source.putAll(found);
"""
_POLL_S: Final = 0.2
_SILENT_S: Final = 120
"""Seconds for which a task is asked for again after a request failed."""
_STALLED_S: Final = 300
"""Seconds for which a task may make no progress. A node without memory keeps the task and never continues it."""
_ATTEMPTS: Final = 4
_PAGE_BYTES: Final = 4 << 20
_COMPRESSION: Final = 8
"""The assumed ratio of a document's JSON to its part of the stored index."""
_MAX_PAGE: Final = 1000


def rewrite(generations: Generations, old: Generation, new: Generation, evolution: Evolution, epoch: int) -> None:
    """Copy all documents of ``old`` to ``new`` with the steps of ``evolution``. They keep their versions.

    A task that the cluster has lost, because its node was restarted, begins again, and so does one whose pages of
    documents were too large for the memory. Raise Transient if the copy is not complete.
    """
    generations.refresh(old)
    expected = generations.count(old)
    doing = f"rewriting the documents of {old.alias}"
    page = _page(generations.client, old, expected, doing)
    failure = ""
    for _ in range(_ATTEMPTS):
        body = {
            # Documents of an earlier attempt are conflicts.
            "conflicts": "proceed",
            "source": {"index": old.index, "size": page},
            "dest": {"index": writer_alias(new.index, epoch), "version_type": "external"},
            "script": {
                "lang": "painless",
                "source": " ".join(_SCRIPT.split()),
                "params": {"names": dict(evolution.names), "constants": dict(evolution.constants)},
            },
        }
        failure = _run(generations.client, body, doing)
        if not failure:
            generations.refresh(new)
            found = generations.count(new)
            if found == expected:
                return
            failure = f"{found} of {expected} documents"
        page = max(1, page // 8)
    raise Transient("destination_unavailable", f"{doing}: OpenSearch reports {failure}", hint=UNAVAILABLE)


def _page(client: Client, old: Generation, count: int, doing: str) -> int:
    """Return the number of documents that the cluster reads at a time, so that they fit into its memory."""
    stats = client.request("GET", f"/{old.index}/_stats/store", doing=doing)
    stored: int = stats["_all"]["primaries"]["store"]["size_in_bytes"]
    return max(1, min(_MAX_PAGE, _PAGE_BYTES * count // max(1, stored * _COMPRESSION)))


def _run(client: Client, body: dict[str, Any], doing: str) -> str:
    """Run the task to its end. Return an empty text, or the reason of a failure."""
    task = client.request("POST", "/_reindex", body, doing=doing, wait_for_completion="false")["task"]
    try:
        answer = _ended(client, task, doing)
    except BaseException:
        with suppress(LevadaError):
            client.request("POST", f"/_tasks/{task}/_cancel", doing=doing)
        raise
    if isinstance(answer, str):
        return answer
    result = answer.get("response", {})
    if "error" in answer or result.get("failures") or result.get("timed_out") or result.get("canceled"):
        return str(answer.get("error", {}).get("type", "failures"))
    return ""


def _ended(client: Client, task: str, doing: str) -> Mapping[str, Any] | str:
    """Return the answer of the task at its end, or a reason why it does not end."""
    until = time.monotonic() + _SILENT_S
    status, stalled = None, 0.0
    while True:
        try:
            answer: Mapping[str, Any] = client.request("GET", f"/_tasks/{task}", doing=doing)
            if answer.get("completed"):
                return answer
            now = time.monotonic()
            until = now + _SILENT_S
            if answer["task"].get("status") != status:
                status, stalled = answer["task"].get("status"), now + _STALLED_S
            elif now >= stalled:
                client.request("POST", f"/_tasks/{task}/_cancel", doing=doing)
                return "no progress"
        except NotFound:
            return "a lost task"
        except Transient:
            if time.monotonic() >= until:
                raise
        time.sleep(_POLL_S)
