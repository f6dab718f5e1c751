"""Carry a plan out, in its order: apply, delete, tell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from levada_operator.act.budget import WriteBudget
from levada_operator.act.events import About, EventBook, namespace_event
from levada_operator.act.metrics import EVENTS, POSTPONED, WRITES
from levada_operator.decide.plan import Plan, StatusWrite
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import PIPELINE_LABEL
from levada_operator.observe.objects import ObjectKey, Refusal
from levada_operator.observe.observed import Observed

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_COUNTERS_EVERY: Final = {"Pipeline": timedelta(seconds=10), "TableSync": timedelta(seconds=60)}
_REFUSED_AGAIN: Final = timedelta(seconds=30)


@dataclass(slots=True)
class Outcome:
    """What came of a plan: the objects as they are now, and what was not taken."""

    written: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[ObjectKey] = field(default_factory=list)
    refusals: tuple[Refusal, ...] = ()


class Runner:
    """Writes; for one event loop. Requests block, so they run in the executor."""

    def __init__(self, cluster: Cluster, budget: WriteBudget, executor: Executor) -> None:
        self._cluster = cluster
        self._budget = budget
        self._executor = executor
        self._events = EventBook()
        self._told_at: dict[tuple[str, ObjectKey], datetime] = {}
        self._refused: dict[tuple[str, ObjectKey], tuple[datetime, Refusal]] = {}

    async def carry_out(self, plan: Plan, observed: Observed) -> Outcome:
        """Do what the plan says. A refused object is told of in the outcome; raise RequestFailed for other failures."""
        outcome = Outcome()
        await self._apply(plan.apply, observed, outcome)
        for key in plan.delete:
            await self._budget.take()
            await self._write(key.kind, self._cluster.delete, key.kind, observed.pipeline.namespace, key.name)
            outcome.deleted.append(key)
        for write in plan.statuses:
            await self._tell(write, observed, outcome)
        await self._note(plan, observed, outcome)
        return outcome

    async def _apply(self, bodies: Iterable[dict[str, Any]], observed: Observed, outcome: Outcome) -> None:
        """Apply in order, and stop at the first that is refused: what comes after needs it."""
        namespace, now = observed.pipeline.namespace, observed.now
        for body in bodies:
            key = ObjectKey(body["kind"], body["metadata"]["name"])
            refused = self._refused.get((namespace, key))
            if refused is not None and now - refused[0] < _REFUSED_AGAIN:
                outcome.refusals = (refused[1],)
                return
            try:
                await self._keep_others(body, key, observed)
                await self._budget.take()
                outcome.written.append(await self._write(key.kind, self._cluster.apply, body))
            except RequestFailed as error:
                if not error.refused:
                    raise
                refusal = Refusal(key, error.message, error.namespace_terminating)
                self._refused[namespace, key] = (now, refusal)
                outcome.refusals = (refusal,)
                return
            self._refused.pop((namespace, key), None)

    async def _keep_others(self, body: dict[str, Any], key: ObjectKey, observed: Observed) -> None:
        """Raise RequestFailed if the name is taken by an object that is not the Pipeline's."""
        if key.kind == "TableSync" or key in observed.owned.bodies:
            return
        there = await self._ask(self._cluster.get, key.kind, observed.pipeline.namespace, key.name)
        if there is None:
            return
        if (there["metadata"].get("labels") or {}).get(PIPELINE_LABEL) != observed.pipeline.name:
            raise RequestFailed(409, f"{key.kind} {key.name} is there already, and not this Pipeline's: rename it")

    async def _tell(self, write: StatusWrite, observed: Observed, outcome: Outcome) -> None:
        namespace, now = observed.pipeline.namespace, observed.now
        if write.urgent:
            await self._budget.take()
        else:
            last = self._told_at.get((namespace, write.key))
            early = last is not None and now - last < _COUNTERS_EVERY[write.key.kind]
            if early or not self._budget.take_spare():
                POSTPONED.inc()
                return
        kind, name = write.key
        try:
            body = await self._write(kind, self._cluster.apply_status, kind, namespace, name, write.status)
        except RequestFailed as error:
            if error.status != 404:
                raise
            return
        self._told_at[namespace, write.key] = now
        outcome.written.append(body)

    async def _note(self, plan: Plan, observed: Observed, outcome: Outcome) -> None:
        """Write Events; one that cannot be written is logged, and holds nothing up."""
        uids = {ObjectKey("TableSync", t.name): t.uid for t in observed.table_syncs}
        for note in plan.notes:
            about = About(observed.pipeline.namespace, uids.get(note.about, observed.pipeline.uid), note)
            event = self._events.event(about, observed.now)
            if event is None:
                continue
            _log.info("%s %s/%s: %s: %s", note.about.kind, about.namespace, note.about.name, note.reason, note.message)
            EVENTS.labels(note.reason).inc()
            try:
                await self._budget.take()
                await self._write("Event", self._cluster.apply, event)
            except RequestFailed as error:
                if error.namespace_terminating:
                    await self._note_elsewhere(about, observed.now)
                else:
                    _log.warning("event %s was not taken: %s", note.reason, error)

    async def _note_elsewhere(self, about: About, now: datetime) -> None:
        try:
            await self._write("Event", self._cluster.apply, namespace_event(about, now))
        except RequestFailed as error:
            _log.warning("event %s was not taken: %s", about.note.reason, error)

    async def _write(self, kind: str, request: Callable[..., _T], *arguments: Any) -> _T:
        try:
            answer = await self._ask(request, *arguments)
        except RequestFailed as error:
            WRITES.labels(kind, str(error.status)).inc()
            raise
        WRITES.labels(kind, "ok").inc()
        return answer

    async def _ask(self, request: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, request, *arguments)
