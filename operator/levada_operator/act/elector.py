"""The elector, which acquires, renews and releases the Lease in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from levada_operator.act.metrics import LEADER
from levada_operator.decide.election import (
    LeaseObservation,
    LeaseTimings,
    held_by,
    may_take,
    observe_lease,
    observe_missing_lease,
    released,
)
from levada_operator.kube.interface import LeaseRequests, RequestFailed

_log = logging.getLogger(__name__)

_NEVER: Final = float("-inf")


class LeaseKey(NamedTuple):
    """The namespace and the name of a Lease."""

    namespace: str
    name: str

    @property
    def text(self) -> str:
        """The key as one word."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Both are called in the elector's thread. ``lost`` must keep this process from any further write."""

    elected: Callable[[], object]
    lost: Callable[[str], None]


class Elector:
    """A candidate of the leader election. ``clock`` is monotonic, in seconds.

    An elector that lost the Lease does not become leader again, because the process's cache may be outdated.
    """

    def __init__(
        self,
        requests: LeaseRequests,
        lease: LeaseKey,
        identity: str,
        timings: LeaseTimings,
        clock: Callable[[], float],
        callbacks: Callbacks,
    ) -> None:
        self._requests = requests
        self._key = lease
        self._identity = identity
        self._timings = timings
        self._clock = clock
        self._callbacks = callbacks
        self._held: dict[str, Any] | None = None
        self._seen: LeaseObservation | None = None
        self._until = _NEVER
        self._elected = self._lost = False
        self._warned = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="levada-lease", daemon=True)

    @property
    def leads(self) -> bool:
        """Return True if this process may write now."""
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        """The holder of the Lease as last read. Empty if there was none."""
        return self._seen.holder if self._seen is not None else ""

    def start(self) -> None:
        """Start the thread that acquires and renews the Lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and release the Lease if it is held. Call it after the last write."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self.release()

    def release(self) -> None:
        """Release the Lease if it is held, so that the next candidate acquires it without waiting."""
        held, leads, self._until = self._held, self.leads, _NEVER
        LEADER.set(0)
        if held is None or not leads:
            return
        try:
            self._requests.replace(released(held, datetime.now(UTC)))
            _log.info("released the Lease %s/%s", *self._key)
        except RequestFailed as error:
            _log.warning("cannot release the Lease %s/%s: %s", *self._key, error)

    def try_once(self) -> None:
        """Try once to acquire or renew the Lease."""
        if self._lost:
            return
        try:
            self._renew() if self._held is not None else self._acquire()
        except RequestFailed as error:
            # Someone else wrote or deleted the Lease. The next attempt reads it again.
            self._held = None if error.status in (404, 409) else self._held
            if error.message != self._warned:
                self._warned = error.message
                _log.warning("Lease %s/%s: %s", *self._key, error)
        if self._elected and not self.leads:
            self._lose("it was not renewed in time")

    def _acquire(self) -> None:
        lease = self._requests.get("Lease", *self._key)
        now = self._clock()
        self._seen = (
            observe_lease(self._seen, lease, now) if lease is not None else observe_missing_lease(self._seen, now)
        )
        if self._elected and lease is not None and self.holder not in ("", self._identity):
            self._lose(f"{self.holder} holds it")
        elif (self.leads and lease is None) or may_take(self._seen, self._identity, self._timings, now):
            self._write(lease or self._new(), self._requests.create if lease is None else self._requests.replace)

    def _renew(self) -> None:
        assert self._held is not None
        self._write(self._held, self._requests.replace)

    def _write(self, lease: dict[str, Any], request: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        # The term counts from before the request. Other candidates count from when they see the write, which is later.
        began = self._clock()
        self._held = request(held_by(lease, self._identity, self._timings, datetime.now(UTC)))
        self._seen = observe_lease(self._seen, self._held, began)
        self._until = began + self._timings.renew_s
        if not self._elected:
            self._elected = True
            LEADER.set(1)
            _log.info("%s holds the Lease %s/%s", self._identity, *self._key)
            self._callbacks.elected()

    def _lose(self, reason: str) -> None:
        self._lost, self._until, self._held = True, _NEVER, None
        LEADER.set(0)
        self._callbacks.lost(f"lost the Lease {self._key.namespace}/{self._key.name}: {reason}")

    def _new(self) -> dict[str, Any]:
        metadata = {"namespace": self._key.namespace, "name": self._key.name}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}

    def _run(self) -> None:
        waits = ""
        while not self._ending.is_set():
            try:
                self.try_once()
            except Exception:
                _log.exception("Lease %s/%s", *self._key)
                if self._elected:
                    self._lose("the elector failed")
            if not self._elected and self.holder != waits:
                waits = self.holder
                _log.info("standby: %s holds the Lease %s/%s", waits or "no other", *self._key)
            self._ending.wait(self._timings.retry_s)
