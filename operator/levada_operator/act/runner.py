"""Execution of a plan: the Pipeline's objects, status and Events, then those of its tables."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from levada.values import age_of
from levada_operator.act.budget import WriteBudget
from levada_operator.act.events import About, EventAggregator, namespace_event
from levada_operator.act.metrics import EVENTS, POSTPONED, WRITES
from levada_operator.act.refusals import RefusalCache, key_of
from levada_operator.decide.comparison import needs_apply
from levada_operator.decide.events import EventDraft
from levada_operator.decide.plan import Plan, StatusWrite
from levada_operator.decide.rehearsal import proves_nothing
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import PIPELINE_LABEL, ROLE_LABEL, STATE_ROLE, driver_pod
from levada_operator.observe.objects import Body, ObjectKey, Refusal
from levada_operator.observe.observed import Observed

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_COUNTERS_EVERY: Final = {"Pipeline": timedelta(seconds=10), "TableSync": timedelta(seconds=60)}
_PER_NAMESPACE: Final = 3
"""Concurrent requests about one namespace. A write of a large object takes seconds, and there are few threads."""
_MAX_REMEMBERED: Final = 10_000
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_AS_APPLIED: Final = ("ConfigMap", "TableSync")
"""Kinds of which the operator takes no other content than its own: the driver runs what they contain."""
_TABLES_S: Final = 5.0
"""Time limit for a plan's writes about tables. The next plan has the rest, based on the state by then."""

_MAX_REFUSED: Final = 20
"""So many refused tables end a plan's writes about tables. A policy or a quota refuses all of them then."""


class _UnlistedError(Exception):
    """An object of the Pipeline has lost the label by which objects are listed. The plan was made without it."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body["metadata"]["name"])
        self.body = body


@dataclass(slots=True)
class Outcome:
    """The result of a plan: the written and deleted objects, and the refusals."""

    written: list[dict[str, Any]] = field(default_factory=list)
    altered: list[tuple[Body, Body]] = field(default_factory=list)
    """Objects that the API server stored otherwise than they were applied: both forms."""
    deleted: list[ObjectKey] = field(default_factory=list)
    refusals: tuple[Refusal, ...] = ()
    failed: RequestFailed | None = None
    """The last temporary failure. Other parts of the plan were executed nonetheless."""
    refused: int = 0
    """The number of refused statuses and deletions of tables."""
    unfinished: bool = False
    """True if writes about tables were left to the next plan, other than counters."""


@contextmanager
def _refusal_noted(outcome: Outcome) -> Iterator[None]:
    """Note a request that would be refused again in the outcome, and raise any other failure."""
    try:
        yield
    except RequestFailed as error:
        outcome.refused += 1
        if not error.refused or outcome.refused >= _MAX_REFUSED:
            raise
        outcome.failed = error


class Runner:
    """Executes plans within one event loop. Requests block, so they run in the executor's threads."""

    def __init__(self, cluster: Cluster, budget: WriteBudget, executor: Executor) -> None:
        self._cluster = cluster
        self._budget = budget
        self._executor = executor
        self._events = EventAggregator()
        self._status_written_at: dict[tuple[str, ObjectKey], datetime] = {}
        self._refusals = RefusalCache()
        self._requests: dict[str, asyncio.Semaphore] = {}

    async def carry_out(self, plan: Plan, observed: Observed) -> Outcome:
        """Execute the plan, the Pipeline's own objects before its tables.

        Writes that exceed the budget are left to the next plan. Refusals and failures are in the outcome, and do not
        keep statuses from being written. One exception: after a new refusal the Pipeline's status is left to the next
        plan, which reports the refusal. Nothing follows an object that the plan does not know of.
        """
        outcome = Outcome()
        for part in (self._objects, self._write_pipeline_status, self._tables):
            try:
                await part(plan, observed, outcome)
            except _UnlistedError as unlisted:
                outcome.written.append(unlisted.body)
                break
            except RequestFailed as error:
                outcome.failed = error
                if error.status == 0:
                    # The API server does not answer. Each further request would wait for its time-out.
                    break
        return outcome

    async def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any] | None:
        """Replace the finalizers of a Pipeline. Return it, or None if it was deleted meanwhile."""
        namespace = str(body["metadata"]["namespace"])
        await self._budget.take(namespace)
        try:
            return await self._write(namespace, "Pipeline", self._cluster.set_finalizers, body, finalizers)
        except RequestFailed as error:
            if error.status != 404:
                raise
            return None

    async def write_lone_tables(self, namespace: str, writes: Iterable[StatusWrite], until: float) -> list[Body]:
        """Write the statuses of TableSyncs without a Pipeline, until then. Return the written objects."""
        written: list[Body] = []
        for write in writes:
            if not await self._budget.take_bulk(until, namespace):
                break
            try:
                written.append(
                    await self._write(
                        namespace,
                        "TableSync",
                        self._cluster.apply_status,
                        "TableSync",
                        namespace,
                        write.key.name,
                        write.status,
                    )
                )
            except RequestFailed as error:
                if error.status != 404:
                    raise
        return written

    async def report(self, namespace: str, uid: str, draft: EventDraft, now: datetime) -> None:
        """Write an Event about a Pipeline that could not be reconciled. A failure is logged and not raised."""
        await self._write_event(About(namespace, uid, draft), now)

    async def _objects(self, plan: Plan, observed: Observed, outcome: Outcome) -> None:
        if not await self._rehearse(plan, observed, outcome) and not plan.held:
            return
        await self._apply([b for b in plan.apply if b["kind"] != "TableSync"], observed, outcome)
        for key in plan.delete:
            if key.kind != "TableSync":
                await self._budget.take(observed.pipeline.namespace)
                await self._delete(key, observed, outcome)

    async def _rehearse(self, plan: Plan, observed: Observed, outcome: Outcome) -> bool:
        """Validate the plan's objects by dry runs. Return False after a refusal."""
        for body in plan.rehearse:
            if not await self._try(body, self._cluster.rehearse, observed, outcome):
                return False
        # The spec that was refused is accepted by now, and the next plan applies it.
        outcome.unfinished = plan.held
        return True

    async def _write_pipeline_status(self, plan: Plan, observed: Observed, outcome: Outcome) -> None:
        if not {r.identity for r in outcome.refusals} <= {r.identity for r in observed.refusals}:
            return
        own = ObjectKey("Pipeline", observed.pipeline.name)
        for write in plan.statuses:
            if write.key == own:
                await self._write_status(write, observed, outcome)
        await self._write_events((n for n in plan.events if n.about == own), observed)

    async def _tables(self, plan: Plan, observed: Observed, outcome: Outcome) -> None:
        """Write the statuses of TableSyncs, then delete and create TableSyncs, until `_TABLES_S` have passed.

        No table depends on another one, so a request that is refused does not hold back those about other tables.
        """
        until = asyncio.get_running_loop().time() + _TABLES_S
        for write in self._in_order(plan, observed):
            if write.beyond_counters and not await self._budget.take_bulk(until, observed.pipeline.namespace):
                outcome.unfinished = True
                return
            # Without its status, the next plan would repeat the Event.
            with _refusal_noted(outcome):
                if await self._write_status(write, observed, outcome):
                    await self._write_events((n for n in plan.events if n.about == write.key), observed)
        for key in plan.delete:
            if key.kind == "TableSync":
                if not await self._budget.take_bulk(until, observed.pipeline.namespace):
                    outcome.unfinished = True
                    return
                with _refusal_noted(outcome):
                    await self._delete(key, observed, outcome)
        if plan.held or not outcome.refusals:
            await self._apply([b for b in plan.apply if b["kind"] == "TableSync"], observed, outcome, until)

    def _in_order(self, plan: Plan, observed: Observed) -> list[StatusWrite]:
        """Return the writes of table statuses: changed conditions, then first statuses, then counters by their age."""
        namespace, new = observed.pipeline.namespace, {t.name for t in observed.table_syncs if not t.status}

        def rank(write: StatusWrite) -> tuple[int, datetime]:
            if write.beyond_counters:
                return int(write.key.name in new), _NEVER
            return 2, self._status_written_at.get((namespace, write.key), _NEVER)

        return sorted((write for write in plan.statuses if write.key.kind == "TableSync"), key=rank)

    async def _delete(self, key: ObjectKey, observed: Observed, outcome: Outcome) -> None:
        namespace = observed.pipeline.namespace
        await self._write(namespace, key.kind, self._cluster.delete, key.kind, namespace, key.name)
        outcome.deleted.append(key)

    async def _apply(
        self, bodies: Iterable[dict[str, Any]], observed: Observed, outcome: Outcome, until: float | None = None
    ) -> None:
        """Apply objects in order, and stop at the first refusal: later objects depend on earlier ones.

        With ``until`` the writes are bulk, and those without a token by then are left out. They are of TableSyncs, of
        which none depends on another one.
        """
        for body in bodies:
            if until is not None and not await self._budget.take_bulk(until, observed.pipeline.namespace):
                outcome.unfinished = True
                return
            if not await self._try(body, self._cluster.apply, observed, outcome, taken=until is not None):
                last = outcome.refusals[-1]
                if until is None or last.namespace_terminating or len(outcome.refusals) >= _MAX_REFUSED:
                    return

    async def _try(
        self,
        body: dict[str, Any],
        request: Callable[[Body], dict[str, Any] | None],
        observed: Observed,
        outcome: Outcome,
        *,
        taken: bool = False,
    ) -> bool:
        """Make one request for an object. If it is refused, add the refusal to the outcome and return False.

        Raise RequestFailed for a temporary failure. ``taken`` is True if the caller has taken a token of the budget.
        """
        namespace, now = observed.pipeline.namespace, observed.now
        if (refusal := self._refusals.known(namespace, body, now)) is None:
            try:
                await self._check_name(body, key_of(body), observed)
                if not taken:
                    await self._budget.take(namespace)
                answer = await self._write(namespace, body["kind"], request, body)
            except RequestFailed as error:
                of_driver = body["metadata"]["name"] == driver_pod(observed.pipeline.name)
                if body["kind"] == "Pod" and proves_nothing(error.message, observed.driver, of_driver=of_driver):
                    _log.info("%s: a dry run of the pod proves nothing: %s", namespace, error)
                    return True
                if await self._is_gone(body, error):
                    return True
                refusal = self._refusals.failed(namespace, body, error, now)
                if refusal is None:
                    raise
            else:
                self._refusals.succeeded(namespace, body)
                if answer is not None:
                    outcome.written.append(answer)
                    if needs_apply(body, answer) and (body["kind"] not in _AS_APPLIED or _has_content(body, answer)):
                        outcome.altered.append((body, answer))
                return True
        outcome.refusals = (*outcome.refusals, refusal)
        return False

    async def _is_gone(self, body: dict[str, Any], error: RequestFailed) -> bool:
        """Return True if a TableSync could not be adopted because it is gone. What adopts it cannot make it."""
        if body["kind"] != "TableSync" or "spec" in body or not error.refused:
            return False
        namespace, named = body["metadata"]["namespace"], f"metadata.name={body['metadata']['name']}"
        # The operator has no right to get one.
        request = partial(self._cluster.list_objects, "TableSync", namespace, "", named, metadata=True)
        there = await self._call(namespace, request)
        return not (there.objects or there.unread)

    async def _check_name(self, body: dict[str, Any], key: ObjectKey, observed: Observed) -> None:
        """Raise `_UnlistedError` if the object is there without its label, RequestFailed if another has its name."""
        if key.kind in ("TableSync", "Pod") or key in observed.owned.bodies:
            return
        namespace = observed.pipeline.namespace
        there = await self._call(namespace, self._cluster.get, key.kind, namespace, key.name)
        if there is None:
            return
        label = (there["metadata"].get("labels") or {}).get(PIPELINE_LABEL)
        if label == observed.pipeline.name:
            return
        if any(owner.get("uid") == observed.pipeline.uid for owner in there["metadata"].get("ownerReferences") or ()):
            raise _UnlistedError({**there, "kind": key.kind})
        solution = "delete it, or give the Pipeline another name"
        if key.kind == "PersistentVolumeClaim" or body["metadata"]["labels"].get(ROLE_LABEL) == STATE_ROLE:
            # It may be the Pipeline's own, after someone changed its labels. What is in it is nowhere else.
            command = f"kubectl -n {namespace} label --overwrite {key.kind.lower()} {key.name} {PIPELINE_LABEL}="
            solution = f"if it is, run: {command}{observed.pipeline.name}; otherwise {solution}"
        marked = f"its label {PIPELINE_LABEL} is {label}" if label else f"it has no label {PIPELINE_LABEL}"
        raise RequestFailed(409, f"it is there already, and not marked as this Pipeline's: {marked}; {solution}")

    async def _write_status(self, write: StatusWrite, observed: Observed, outcome: Outcome) -> bool:
        """Write a status. Return True if it was written, False if it was postponed or the object does not exist.

        For a table's status with ``beyond_counters`` the caller has taken a token of the budget.
        """
        namespace, now = observed.pipeline.namespace, observed.now
        if write.beyond_counters:
            if write.key.kind == "Pipeline":
                await self._budget.take(namespace)
        else:
            last = self._status_written_at.get((namespace, write.key))
            early = last is not None and age_of(last, now) < _COUNTERS_EVERY[write.key.kind]
            if early or not self._budget.take_spare():
                POSTPONED.inc()
                return False
        kind, name = write.key
        try:
            body = await self._write(namespace, kind, self._cluster.apply_status, kind, namespace, name, write.status)
        except RequestFailed as error:
            if error.status != 404:
                raise
            return False
        self._note_written(namespace, write.key, now)
        outcome.written.append(body)
        return True

    def _note_written(self, namespace: str, key: ObjectKey, now: datetime) -> None:
        if len(self._status_written_at) >= _MAX_REMEMBERED:
            # Objects come and go. Older times make no difference to what may be written.
            longest = max(_COUNTERS_EVERY.values())
            self._status_written_at = {k: at for k, at in self._status_written_at.items() if age_of(at, now) < longest}
        self._status_written_at[namespace, key] = now

    async def _write_events(self, events: Iterable[EventDraft], observed: Observed) -> None:
        """Write Events. A failure is logged and not raised."""
        uids = {ObjectKey("TableSync", t.name): t.uid for t in observed.table_syncs}
        for draft in events:
            about = About(observed.pipeline.namespace, uids.get(draft.about, observed.pipeline.uid), draft)
            await self._write_event(about, observed.now)

    async def _write_event(self, about: About, now: datetime) -> None:
        draft, event = about.draft, self._events.event(about, now)
        if event is None:
            return
        _log.info("%s %s/%s: %s: %s", draft.about.kind, about.namespace, draft.about.name, draft.reason, draft.message)
        EVENTS.labels(draft.reason).inc()
        try:
            await self._budget.take(about.namespace)
            await self._write(about.namespace, "Event", self._cluster.apply, event)
        except RequestFailed as error:
            if error.namespace_terminating:
                await self._write_namespace_event(about, now)
            else:
                _log.warning("Event %s was not recorded: %s", draft.reason, error)

    async def _write_namespace_event(self, about: About, now: datetime) -> None:
        try:
            await self._write(about.namespace, "Event", self._cluster.apply, namespace_event(about, now))
        except RequestFailed as error:
            _log.warning("Event %s was not recorded: %s", about.draft.reason, error)

    async def _write(self, namespace: str, kind: str, request: Callable[..., _T], *arguments: Any) -> _T:
        seconds = 0.0

        def timed() -> _T:
            # Not the wait for a thread: a namespace that writes much would look like an API server that is slow.
            nonlocal seconds
            begun = time.monotonic()
            try:
                return request(*arguments)
            finally:
                seconds = time.monotonic() - begun

        try:
            answer = await self._call(namespace, timed)
        except RequestFailed as error:
            self._budget.answered(seconds, error.status, error.retry_after_s, namespace=namespace)
            WRITES.labels(kind, str(error.status)).inc()
            raise
        self._budget.answered(seconds, namespace=namespace)
        WRITES.labels(kind, "ok").inc()
        return answer

    async def _call(self, namespace: str, request: Callable[..., _T], *arguments: Any) -> _T:
        async with self._requests.setdefault(namespace, asyncio.Semaphore(_PER_NAMESPACE)):
            return await asyncio.get_running_loop().run_in_executor(self._executor, request, *arguments)


def _has_content(applied: Body, answer: Body) -> bool:
    """Return True if an object differs in its metadata alone from what was applied."""
    return not needs_apply({field: value for field, value in applied.items() if field != "metadata"}, answer)
