"""State in ConfigMaps in the Pipeline's namespace, for sources that cannot be written to, and for few tables.

The *head* ConfigMap holds the epoch and the documents of the whole pipeline. Eight *part* ConfigMaps hold those of the
tables. A table's OID determines its part. Each document is one key, ``<kind>.<table>.<name>``. A write is a
compare-and-set on the resourceVersion of one ConfigMap, and sends only changed keys.

**Fencing.** Every ConfigMap has an epoch. `next_epoch` raises the head's epoch, then every part's, and returns when all
are raised. A write with an older epoch to a part may come before the part's epoch is raised. The new driver has not
read anything then, so the write belongs to the state that it takes over. If the write comes later, the resourceVersion
does not match. The writer then reads again, finds the higher epoch, and is refused. A driver that dies between two
parts has read and written nothing. The next one raises all of them again.

**Writes to several ConfigMaps** are not atomic: phases of several tables in one call, a table with its request, the
whole pipeline. A takeover in between leaves the first part written, like the end of the process. Each such write is a
set of independent changes that can be repeated.
"""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import itertools
import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from levada.errors import LevadaError, NeedsOperator, Permanent, Transient
from levada.spec.names import state_names
from levada.stores.cached import CachedStore
from levada.stores.patience import Patience
from levada.stores.storage import (
    Change,
    Document,
    DocumentKind,
    Entry,
    Key,
    Storage,
    Versions,
    changes,
    document_text,
    parsed_document,
    readable_as_written,
    require_current,
    selected,
)
from levada.values import TableId

if TYPE_CHECKING:
    from levada.stores.config_map_client import ConfigMaps, Version

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 1_000_000
"""The largest size of a ConfigMap's content in bytes. The API server rejects more than 1 MiB."""
ROOM_BYTES: Final = 100_000
"""The part of it in bytes that only kinds with `DocumentKind.reserve` may use."""

_EPOCH: Final = "epoch"
_WRITE: Final = "write"

_CONFLICTS: Final = 100
_LONGEST_PAUSE_S: Final = 0.1
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_FIRST_PATIENCE_S: Final = 3.0
_PATIENCE_S: Final = 600.0
"""Seconds to wait for an API server that has answered before. This is about the duration of its upgrade."""

_T = TypeVar("_T")
_Data = dict[str, str]
_Work = Callable[[_Data, bool], _T]


class _Counted(Generic[_T]):
    """A request that counts how often it ran."""

    def __init__(self, request: Callable[[], _T]) -> None:
        self._request = request
        self.runs = 0

    def __call__(self) -> _T:
        self.runs += 1
        return self._request()


class ConfigMapStorage(Storage):
    """One pipeline's ConfigMaps. Raise NeedsOperator ``store_full`` if a ConfigMap would become too large."""

    retries = True

    def __init__(self, maps: ConfigMaps, pipeline: str) -> None:
        self._maps = maps
        self._pipeline = pipeline
        self._head, *self._parts = state_names(pipeline)
        # The content when last read. A write is first tried on it, without another read.
        self._seen: dict[str, Version] = {}
        self._patience = Patience(_FIRST_PATIENCE_S, _PATIENCE_S)
        self._closed = False

    def stop_waiting(self) -> None:
        self._patience.stop_waiting()

    # Requests

    def _ask(self, request: Callable[[], _T]) -> _T:
        """Run a request, and repeat it while the API server is unavailable."""
        if self._closed:
            raise Permanent("store_closed", f"the store of pipeline {self._pipeline} is closed")
        if self._patience.over and self.last_error is not None:
            raise self.last_error
        retrying = Retrying(
            stop=self._patience.gives_up,
            wait=wait_exponential_jitter(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S),
            sleep=self._patience.pause,
            retry=retry_if_exception(lambda error: isinstance(error, Transient)),
            before_sleep=self._record_error,
            reraise=True,
        )
        answer: _T = retrying(request)
        if self.last_error is not None:
            _log.info("the store answers again")
        self._patience.reached, self.last_error = True, None
        return answer

    def _record_error(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        # Once an outage. The status has the newest error.
        _log.log(logging.WARNING if self.last_error is None else logging.DEBUG, "%s", error)
        self.last_error = error if isinstance(error, LevadaError) else None

    def _read(self, name: str) -> Version:
        return self._ask(lambda: self._maps.read(name))

    def _change(self, name: str, epoch: int | None, work: _Work[_T], *, room: int = 0) -> _T:
        """Apply ``work`` to a ConfigMap's content and write the result, as one step.

        ``epoch`` None skips the check of the epoch. ``room`` is the number of bytes that must stay free. ``work`` may
        run several times, and its last result counts. Its second argument is True if the result of an earlier run may
        have been written, because a response was lost.
        """
        from levada.stores.config_map_client import Conflict

        sent: tuple[str, _T] | None = None
        maybe_written = False
        for _ in range(_CONFLICTS):
            known = self._seen.pop(name, None)
            seen = known or self._read(name)
            if sent is not None and seen.data.get(_WRITE) == sent[0]:
                return sent[1]  # The write succeeded, but its response was lost.
            current = self._epoch(name, seen.data)
            require_current(epoch, current, self._pipeline, f"ConfigMap {self._maps.namespace}/{name}")
            data = dict(seen.data)
            answer = work(data, maybe_written)
            if data == seen.data:
                if known is None:
                    return answer
                continue  # Without a write nothing would be compared, so read the current epoch.
            if epoch is not None:
                data[_EPOCH] = str(epoch)
            data[_WRITE] = uuid.uuid4().hex
            self._refuse_overflow(name, seen.data, data, room)
            request = _Counted(partial(self._send, name, seen, data))
            try:
                self._seen[name] = self._ask(request)
                return answer
            except Conflict:
                if request.runs > 1:
                    # The conflict may be with the first run of this request.
                    sent, maybe_written = (data[_WRITE], answer), True
                time.sleep(random.uniform(0, _LONGEST_PAUSE_S))
        raise Transient(
            "store_contended",
            f"ConfigMap {self._maps.namespace}/{name} was changed by other writers {_CONFLICTS} times in a row",
            hint="stop them. To see who they are:"
            f" kubectl -n {self._maps.namespace} get configmap {name} -o yaml --show-managed-fields",
        )

    def _send(self, name: str, seen: Version, data: _Data) -> Version:
        if seen.number:
            return self._maps.patch(name, seen, data)
        # In a cluster the operator has created it. The driver may not create ConfigMaps there.
        return self._maps.create(name, data, {"levada.dev/pipeline": self._pipeline, "levada.dev/role": "state"})

    def _refuse_overflow(self, name: str, before: Mapping[str, str], after: Mapping[str, str], room: int) -> None:
        size = _size(after)
        if size > MAX_BYTES - room and size > _size(before):
            raise NeedsOperator(
                "store_full",
                f"pipeline {self._pipeline}: its state does not fit into ConfigMap {self._maps.namespace}/{name}:"
                f" {size} bytes, with room for {MAX_BYTES - room}",
                hint="replicate fewer tables (spec.tables), or create a new Pipeline with spec.store.postgres",
            )

    def _place(self, key: Key[Any]) -> str:
        return self._head if key.table is None else self._parts[int(key.table) % len(self._parts)]

    # Documents

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        # A head that was emptied or deleted by hand has none. With an epoch below the parts' none could be written.
        of_parts = max(self._epoch(name, self._read(name).data) for name in self._parts)

        def take(data: _Data, _: bool) -> int:
            check(self._document(data, key))
            data[_EPOCH] = str(max(self._epoch(self._head, data), of_parts) + 1)
            return int(data[_EPOCH])

        epoch = self._change(self._head, None, take)
        for name in self._parts:

            def raise_it(data: _Data, _: bool, name: str = name) -> None:
                data[_EPOCH] = str(max(epoch, self._epoch(name, data)))

            self._change(name, None, raise_it)
        return epoch

    def _epoch(self, name: str, data: Mapping[str, str]) -> int:
        with readable_as_written(f"{_EPOCH} in ConfigMap {self._maps.namespace}/{name}"):
            return int(data.get(_EPOCH, 0))

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        names = [*self._parts, self._head] if kind.pipeline_wide else self._parts
        return {
            key: parsed_document(text, self._where(key))
            for place in names
            for (of, table, name), text in _entries(self._read(place).data).items()
            if of == kind.name
            for key in [Key(kind, table, name)]
        }

    def get(self, key: Key[Any]) -> Document | None:
        return self._document(self._read(self._place(key)).data, key)

    def _document(self, data: Mapping[str, str], key: Key[Any]) -> Document | None:
        text = data.get(_key_text(key))
        return None if text is None else parsed_document(text, self._where(key))

    def _where(self, key: Key[Any]) -> str:
        return f"{_key_text(key)} in ConfigMap {self._maps.namespace}/{self._place(key)}"

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        done: dict[Key[Any], Versions] = {}
        if not keys:
            self._change(self._head, epoch, lambda data, _: None)
        # The head comes first.
        for place, group in itertools.groupby(sorted(keys, key=self._place), self._place):
            here = list(group)
            room = 0 if all(key.kind.reserve for key in here) else ROOM_BYTES
            done |= self._change(place, epoch, partial(self._update, here, change, {}), room=room)
        return done

    def _update(
        self,
        keys: Collection[Key[Any]],
        change: Change,
        done: dict[Key[Any], Versions],
        data: _Data,
        maybe_written: bool,
    ) -> Mapping[Key[Any], Versions]:
        """Apply a change to the documents of a ConfigMap, and return them. ``done`` has those of earlier runs."""
        texts = selected(keys, _entries(data))
        found = {key: parsed_document(text, self._where(key)) for key, text in texts.items()}
        if not maybe_written:
            done.clear()
        elif found == {key: after for key, (_, after) in done.items() if after is not None}:
            # Another writer may have changed other documents since.
            return done
        new = changes(keys, found, change)
        # An earlier run may have deleted documents that this one does not find any more.
        done.update(new)
        for key, (before, after) in new.items():
            if after is None:
                data.pop(_key_text(key), None)
            elif after != before:
                data[_key_text(key)] = document_text(after)
        return done

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        def delete(data: _Data, _: bool) -> None:
            for text in data.keys() - {_EPOCH, _WRITE, _key_text(kept)}:
                del data[text]

        for name in (self._head, *self._parts):
            self._change(name, epoch, delete)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._maps.close()


class ConfigMapStore(CachedStore):
    """A store in ConfigMaps in the cluster of this pod, or else of $KUBECONFIG.

    In a pod the namespace is the pod's. Elsewhere it is ``namespace``, or else the kubeconfig's. Raise NeedsOperator
    ``no_cluster`` if there is no cluster, and ``kubernetes_missing`` without the package's extra ``kubernetes``.
    """

    def __init__(self, pipeline: str, namespace: str = "") -> None:
        super().__init__(pipeline, ConfigMapStorage(config_maps(namespace), pipeline))


def config_maps(namespace: str) -> ConfigMaps:
    """Return the ConfigMaps of a namespace. Raise as `ConfigMapStore` does."""
    try:
        # Imported here because the import takes a second, and other stores do not need it.
        from levada.stores.config_map_client import ConfigMaps
    except ModuleNotFoundError as error:
        raise NeedsOperator(
            "kubernetes_missing",
            f"the ConfigMaps of a cluster need the Python package {error.name}",
            hint="pip install 'levada[kubernetes]'",
        ) from None
    return ConfigMaps(namespace)


def _entries(data: Mapping[str, str]) -> dict[Entry, str]:
    """Return the texts of the documents in a ConfigMap. Keys of others may be among them."""
    entries: dict[Entry, str] = {}
    for key, text in data.items():
        kind, _, rest = key.partition(".")
        table, _, name = rest.partition(".")
        if not table or table.isdecimal():
            entries[kind, TableId(table) if table else None, _unescape(name)] = text
    return entries


def _key_text(key: Key[Any]) -> str:
    table = "" if key.table is None else str(int(key.table))
    return f"{key.kind.name}.{table}.{_escape(key.name)}".rstrip(".")


def _escape(name: str) -> str:
    """Return a name in the characters that a ConfigMap's key may have."""
    return re.sub(rb"[^A-Za-z0-9-]", lambda found: b"_%02x" % found[0][0], name.encode()).decode()


def _unescape(name: str) -> str:
    return re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), name.encode()).decode(errors="replace")


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in data.items())
