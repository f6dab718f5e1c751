"""The surroundings of the decisions: the budget of writes, the queue, the watchdog, Events, the runner."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.requests import Clock, Requests, carry_out
from tests.operator.samples import (
    NOON,
    at,
    error_document,
    merge,
    observed,
    pipeline,
    progress,
    running,
    table_document,
    table_sync,
)
from tests.rigs.waiting import LIMIT_S

from levada_operator.act.budget import BURST, SPARE_PER_S, WriteBudget
from levada_operator.act.events import REPEAT_AFTER, About, EventAggregator, namespace_event
from levada_operator.act.fair_turns import FairTurns
from levada_operator.act.refusals import is_stored_invalid, request_text
from levada_operator.act.runner import Outcome, Runner
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.watchdog import SWEEP_DEADLINE_S, WATCH_DEADLINE_S, Watchdog
from levada_operator.decide.comparison import content_digest
from levada_operator.decide.events import EventDraft
from levada_operator.decide.reconcile import reconcile
from levada_operator.kube.interface import RESOURCES, RequestFailed
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey, Refusal

SHOP = PipelineKey("data", "shop")


def test_budget_gives_a_burst_and_then_its_rate() -> None:
    """Writes never exceed the burst and the rate. Writes that can wait leave a third of the burst to the others."""

    async def script() -> None:
        clock = Clock()
        budget = WriteBudget(clock)
        spare = 0
        while budget.take_spare():
            spare += 1
        assert spare == BURST - BURST // 3 + 1
        for _ in range(BURST - spare):
            await budget.take()
        taken = asyncio.create_task(budget.take())
        await asyncio.sleep(0)
        assert not taken.done()
        assert not budget.take_spare()
        clock.now += 1 / SPARE_PER_S
        await taken

    asyncio.run(script())


def test_budget_lets_prompt_writes_pass_bulk_ones() -> None:
    """A table's write waits while a Pipeline's does, gives up when its time is over, and has its turn afterwards."""

    async def script() -> None:
        clock = Clock()
        budget = WriteBudget(clock, burst=1)
        now = asyncio.get_running_loop().time
        assert await budget.take_bulk(now())
        prompt = asyncio.create_task(budget.take())
        await asyncio.sleep(0)
        assert not await budget.take_bulk(now() + 0.01)
        clock.now += 1 / SPARE_PER_S
        await prompt
        bulk = asyncio.create_task(budget.take_bulk(now() + 60))
        await asyncio.sleep(0)
        assert not bulk.done()
        clock.now += 1 / SPARE_PER_S
        assert await bulk

    asyncio.run(script())


def test_runner_leaves_tables_to_the_next_plan_when_there_is_no_room() -> None:
    """The Pipeline's objects and status are written before its tables, for which no room is left."""

    async def script() -> tuple[Outcome, list[tuple[str, str, str]]]:
        cluster, seen = Requests(), running(table_sync("new"), report=progress(table_document("other")))
        with ThreadPoolExecutor(1) as executor:
            plan = reconcile(seen)
            assert [w.key.kind for w in plan.statuses] == ["Pipeline", "TableSync"]
            prompt = 1 + sum(n.about.kind == "Pipeline" for n in plan.events)
            outcome = await Runner(cluster, WriteBudget(Clock(), burst=prompt), executor).carry_out(plan, seen)
        return outcome, cluster.writes

    outcome, written = asyncio.run(script())
    assert outcome.unfinished
    assert ("status", "Pipeline", "shop") in written
    assert not [w for w in written if w[1] == "TableSync"]


def test_changed_condition_is_written_before_first_statuses_and_counters() -> None:
    """Counters come last, those that were written longest ago first."""
    statuses: dict[str, Any] = {}
    errored, lagging = {"phase": "Errored", "error": error_document()}, {"lagSeconds": 40.0}
    rounds: list[tuple[float, dict[str, dict[str, Any]]]] = [
        (0, {"old": {}, "recent": {}, "errored": {}}),
        (70, {"old": {}, "recent": lagging, "errored": {}}),
        (140, {"old": lagging, "recent": {}, "errored": errored, "new": {}}),
    ]

    async def script() -> Requests:
        cluster = Requests()
        with ThreadPoolExecutor(1) as executor:
            runner = Runner(cluster, WriteBudget(Clock(), burst=100), executor)
            for seconds, tables in rounds:
                cluster.writes.clear()
                report = progress(*(table_document(t, **how) for t, how in tables.items()), fetched=seconds)
                bodies = [merge(table_sync(t), {"status": statuses.get(t)}) for t in tables]
                seen = replace(running(*bodies, report=report), now=at(seconds))
                plan = reconcile(seen)
                statuses.update({w.key.name.removeprefix("shop-public-"): w.status for w in plan.statuses})
                await runner.carry_out(plan, seen)
        return cluster

    written = [name.removeprefix("shop-public-") for verb, kind, name in asyncio.run(script()).writes
               if (verb, kind) == ("status", "TableSync")]  # fmt: skip
    assert written == ["errored", "new", "old", "recent"]


def test_queue_hands_a_key_out_once_at_a_time() -> None:
    """A key that is woken while it is busy comes again afterwards, once for many wakes."""

    async def script() -> None:
        queue: KeyedQueue[str] = KeyedQueue()
        for key in ("a", "b", "a", "a"):
            await queue.add(key)
        assert queue.length == 2
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        await queue.add("a")
        second = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert not second.done()
        await queue.done("a")
        assert await second == "a"
        assert queue.length == 2
        for key in ("a", "b"):
            await queue.done(key)
        assert queue.length == 0

    asyncio.run(script())


def test_queue_takes_from_each_group_in_turn() -> None:
    """A group with many keys delays no other, and has a limit of those that are processed together."""

    async def script() -> None:
        queue = KeyedQueue[str](lambda key: key[0], most=2)
        for key in ("a1", "a2", "a3", "b1"):
            await queue.add(key)
        assert [await queue.get() for _ in range(3)] == ["a1", "b1", "a2"]
        third = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert not third.done()
        await queue.done("a1")
        assert await third == "a3"

    asyncio.run(script())


def test_prompt_writes_of_a_namespace_delay_no_other() -> None:
    """However many writes of a namespace wait, that of another one waits for one of them at most."""

    async def script() -> list[str]:
        budget, order = WriteBudget(lambda: 0.0, burst=0), []

        async def write(namespace: str) -> None:
            async with budget.turns.turn(namespace):
                order.append(namespace)
                await asyncio.sleep(0)

        await asyncio.gather(*(write("loud") for _ in range(50)), write("quiet"))
        return order

    assert asyncio.run(script()).index("quiet") == 1


def test_bulk_writes_of_a_namespace_delay_no_other() -> None:
    """A tenant may have thousands of tables of many Pipelines. Those of another one have every second write."""

    async def script() -> list[str]:
        budget, order, until = WriteBudget(time.monotonic, burst=1), [], asyncio.get_running_loop().time() + LIMIT_S
        for _ in range(200):
            budget.answered(0.01)

        async def write(namespace: str, count: int) -> None:
            for _ in range(count):
                assert await budget.take_bulk(until, namespace)
                order.append(namespace)
                await asyncio.sleep(0)

        await asyncio.gather(*(write("loud", 2) for _ in range(20)), write("quiet", 5))
        return order

    order = asyncio.run(script())
    assert len(order) == 45
    assert max(place for place, namespace in enumerate(order) if namespace == "quiet") < 15


def test_nothing_is_kept_of_groups_that_wait_no_more() -> None:
    """Namespaces come and go for as long as an operator runs."""

    async def script() -> None:
        turns = FairTurns()
        for number in range(3):
            async with turns.turn(number):
                assert turns.busy
        assert not turns.busy
        assert not turns._groups

    asyncio.run(script())


def test_events_have_names_that_the_api_server_takes() -> None:
    """A TableSync's name may be as long as any, and an Event's name has its digest besides."""
    for name in ("n" * 253, "a" * 235 + "-" + "b" * 10, "a" * 235 + "." + "b" * 10):
        draft = EventDraft(ObjectKey("TableSync", name), "TableErrored", "x" * 100_000)
        book = EventAggregator()
        event = book.event(About("data", "u", draft), NOON)
        assert event is not None
        made = event["metadata"]["name"]
        assert len(made) <= 253
        assert not {"-.", ".."} & {made[i : i + 2] for i in range(len(made))}
        assert event["involvedObject"]["name"] == name
        assert sum(len(part) for key in book._recorded for part in key) < 100, "a long message is not kept"


def test_slow_writes_of_a_namespace_leave_threads_to_others() -> None:
    """A write of a megabyte takes seconds. However many one namespace has, another's is made meanwhile."""
    over = threading.Event()

    class Slow(Requests):
        def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
            if body["metadata"]["namespace"] == "large":
                over.wait(LIMIT_S)
            return dict(body)

    async def script() -> None:
        with ThreadPoolExecutor(4) as executor:
            runner = Runner(Slow(), WriteBudget(Clock(), burst=100), executor)
            bodies = [{"metadata": {"namespace": "large", "name": str(number)}} for number in range(8)]
            slow = [asyncio.create_task(runner.set_finalizers(body, ())) for body in bodies]
            await asyncio.sleep(0)
            await runner.set_finalizers({"metadata": {"namespace": "small", "name": "shop"}}, ())
            assert not any(task.done() for task in slow)
            over.set()
            await asyncio.gather(*slow)

    asyncio.run(script())


def test_watchdog_tells_a_quiet_watch_and_a_sweep_that_hangs() -> None:
    """A change that a list has and the watch lacks for long is a reason to restart.

    So is a long time without a sweep.
    """
    clock = Clock()
    dog = Watchdog(clock)
    dog.swept()
    dog.compare("data", {SHOP: "7"}, {SHOP: "7"})
    assert dog.unhealthy_reason() == ""
    dog.compare("data", {SHOP: "9"}, {SHOP: "7"})
    clock.now += WATCH_DEADLINE_S + 1
    dog.compare("data", {SHOP: "11"}, {SHOP: "7"})
    assert "data/shop" in dog.unhealthy_reason()
    # An object that changes all the time is always a moment ahead of its watch.
    dog.compare("data", {SHOP: "12"}, {SHOP: "11"})
    assert dog.unhealthy_reason() == ""
    # A watch that lags behind reports other objects meanwhile.
    clock.now += WATCH_DEADLINE_S - 1
    dog.heard("")
    clock.now += WATCH_DEADLINE_S - 1
    dog.heard("others")
    dog.swept()
    assert dog.unhealthy_reason() == ""
    clock.now += WATCH_DEADLINE_S - 1
    assert "data/shop" in dog.unhealthy_reason()
    dog.heard("data")
    assert dog.unhealthy_reason() == ""
    dog.compare("data", {}, {})
    clock.now += WATCH_DEADLINE_S + 1
    dog.swept()
    assert dog.unhealthy_reason() == ""
    clock.now += SWEEP_DEADLINE_S + 1
    assert "sweep" in dog.unhealthy_reason()


def test_event_is_counted_and_not_repeated_at_once() -> None:
    """An Event that repeats is one object. It is written again only after five minutes, with its count."""
    book = EventAggregator()
    about = About("data", "uid-shop", EventDraft(ObjectKey("Pipeline", "shop"), "SlotUnhealthy", "lost"))
    first = book.event(about, NOON)
    assert first is not None
    assert book.event(about, NOON + REPEAT_AFTER / 2) is None
    again = book.event(about, NOON + REPEAT_AFTER)
    assert again is not None
    assert (again["metadata"], again["count"]) == (first["metadata"], 2)
    elsewhere = namespace_event(about, NOON)
    assert elsewhere["metadata"]["namespace"] == "default"
    assert elsewhere["involvedObject"] == {"apiVersion": "v1", "kind": "Namespace", "name": "data"}


def test_objects_that_cannot_be_read_are_one_event() -> None:
    """Its message changes with each object of the namespace, and would be an Event of each Pipeline there."""
    aggregator = EventAggregator()
    draft = EventDraft(ObjectKey("Pipeline", "shop"), "ObjectsUnread", "ignored: ConfigMap a: too large")
    first = aggregator.event(About("data", "u", draft), NOON)
    other = replace(draft, message="ignored: ConfigMap b: too large")
    assert aggregator.event(About("data", "u", other), NOON) is None
    later = aggregator.event(About("data", "u", other), NOON + REPEAT_AFTER)
    assert first is not None
    assert later is not None
    assert (later["metadata"], later["count"]) == (first["metadata"], 2)


def test_runner_writes_in_order() -> None:
    """Objects, then statuses, then Events."""
    cluster = Requests()
    asyncio.run(carry_out(cluster, observed()))
    kinds = [(verb, kind) for verb, kind, _ in cluster.writes]
    assert kinds.pop(0) == ("rehearse", "StatefulSet")
    own = ("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Service", "StatefulSet")
    assert kinds[: len(own)] == [("apply", kind) for kind in own]
    assert kinds[len(own)] == ("status", "Pipeline")


def test_runner_stops_at_a_refusal_and_tells_it() -> None:
    """A refused object keeps the driver from being created, and is in the next status. Other errors are not."""
    cluster = Requests(NetworkPolicy=RequestFailed(403, "quota"))
    outcome = asyncio.run(carry_out(cluster, observed()))
    assert [r.message for r in outcome.refusals] == ["quota"]
    assert ("apply", "StatefulSet", "shop-driver") not in cluster.writes
    assert reconcile(observed(refusals=outcome.refusals)).events[0].reason == "RefusedByCluster"
    later = asyncio.run(carry_out(Requests(Service=RequestFailed(500, "later")), observed()))
    assert (later.refusals, later.failed and later.failed.message) == ((), "later")


def test_status_is_written_although_objects_fail() -> None:
    """An error of the API server, or an object that it is known to refuse, keeps no status from being written."""
    for code in (403, 500, 503):
        cluster = Requests(Service=RequestFailed(code, "no"))
        (service,) = (b for b in reconcile(observed()).apply if b["kind"] == "Service")
        refusal = Refusal(ObjectKey("Service", "shop-driver"), "no", content=content_digest(service))
        asyncio.run(carry_out(cluster, observed(refusals=(refusal,))))
        assert ("status", "Pipeline", "shop") in cluster.writes, code


@pytest.mark.parametrize("code", [404, 405, 429, 500, 503])
def test_lasting_failure_of_any_code_is_a_refusal(code: int) -> None:
    """An object that fails for longer than an overload lasts is refused, with any code.

    New content is tried immediately.
    """
    failing = RequestFailed(code, ".spec.template.spec.tolerationz: field not declared in schema")
    cluster = Requests(StatefulSet=failing)
    runner = Runner(cluster, WriteBudget(Clock(), burst=1000), ThreadPoolExecutor(1))

    def outcome(second: float, **changes: Any) -> Outcome:
        seen = observed(pipeline(spec=changes), now=at(second))
        return asyncio.run(carry_out(cluster, seen, runner=runner))

    assert outcome(0).refusals == ()
    (refusal,) = outcome(11).refusals
    assert "field not declared" in refusal.message
    assert not {w for w in cluster.writes if w[0] == "apply"}, "nothing is changed before the rehearsal has passed"
    cluster.failures.clear()
    assert outcome(12).refusals == (refusal,)
    assert outcome(13, driver={"image": "other:1"}).refusals == ()


def test_field_that_no_schema_has_is_refused_at_once() -> None:
    """The API server answers 500 to it, but no attempt more would succeed. At no moment is the spec accepted."""
    failing = RequestFailed(500, "failed to create typed patch object (a/b): .spec.x: field not declared in schema")
    cluster = Requests(StatefulSet=failing)
    runner = Runner(cluster, WriteBudget(Clock(), burst=1000), ThreadPoolExecutor(1))
    outcome = asyncio.run(carry_out(cluster, observed(pipeline()), runner=runner))
    assert outcome.refusals
    assert not {write for write in cluster.writes if write[0] == "apply_status"}


def test_outage_is_no_refusal() -> None:
    """An API server that was away and then answers once with a passing error has refused nothing yet."""
    cluster = Requests(StatefulSet=RequestFailed(0, "no answer"))
    runner = Runner(cluster, WriteBudget(Clock(), burst=1000), ThreadPoolExecutor(1))
    for second, status in ((0, 503), (5, 0), (60, 503), (65, 503)):
        cluster.failures["StatefulSet"] = RequestFailed(status, "overloaded")
        assert asyncio.run(carry_out(cluster, observed(now=at(second)), runner=runner)).refusals == ()


def test_end_of_the_namespace_is_no_fault_of_the_spec() -> None:
    """A namespace that is being deleted refuses what the operator would make again. No status and no Event says so."""
    owned = replace(running().owned, bodies={k: b for k, b in running().owned.bodies.items() if k.kind != "ConfigMap"})
    cluster = Requests(ConfigMap=RequestFailed(403, "is being terminated", ["NamespaceTerminating"]))
    refusals = asyncio.run(carry_out(cluster, running(owned=owned))).refusals
    assert [r.namespace_terminating for r in refusals] == [True]
    plan = reconcile(running(owned=owned, refusals=refusals))
    assert not [draft for draft in plan.events if draft.type == "Warning"]
    told = {c["type"]: c["reason"] for w in plan.statuses if w.key.kind == "Pipeline" for c in w.status["conditions"]}
    assert told.get("Accepted", "Valid") == "Valid"


def test_refused_spec_is_in_the_status_until_it_is_set_back() -> None:
    """A refused pod template keeps the driver and makes Accepted False with the message, until it is corrected."""
    typo = pipeline(spec={"driver": {"podTemplate": {"spec": {"tolerationz": []}}}})
    text = "failed to create typed patch object: .spec.template.spec.tolerationz: field not declared in schema"
    refusals = (Refusal(ObjectKey("StatefulSet", "shop-driver"), text),)
    plan = reconcile(running(body=typo, refusals=refusals))
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    told = {c["type"]: c for c in status["conditions"]}
    assert (told["Accepted"]["status"], told["Accepted"]["reason"]) == ("False", "RefusedByCluster")
    assert "correct spec.driver.podTemplate" in told["Accepted"]["message"]
    assert told["DriverAvailable"]["status"] == "True"
    assert [n.reason for n in plan.events if "Refused" in n.reason or n.reason == "SpecChanged"] == ["RefusedByCluster"]
    new = reconcile(observed(typo, refusals=refusals)).statuses[0].status
    assert (new["phase"], new["display"]["tables"]) == ("Failed", "0/0")
    assert {c["reason"] for c in new["conditions"]} >= {"RefusedByCluster"}
    back = reconcile(running(refusals=refusals)).statuses[0].status
    assert next(c["reason"] for c in back["conditions"] if c["type"] == "Accepted") == "Valid"


def test_executors_template_is_rehearsed_with_the_manifest() -> None:
    """Only Spark makes pods of the executors' template, so the API server checks it in a Job that is never made."""
    cluster_mode = {"driver": {"mode": "Cluster"}, "executor": {"podTemplate": {"spec": {"nodeSelectr": {}}}}}
    plan = reconcile(running(body=pipeline(spec=cluster_mode)))
    (job,) = (b for b in plan.rehearse if b["kind"] == "Job")
    assert "nodeSelectr" in job["spec"]["template"]["spec"]
    assert not [b for b in plan.apply if b["kind"] == "Job"]


def test_runner_takes_over_no_foreign_object() -> None:
    """A ConfigMap of that name that is not the Pipeline's stays as it is."""
    cluster = Requests()
    cluster.there["ConfigMap", "shop-manifest"] = {"metadata": {"name": "shop-manifest"}}
    outcome = asyncio.run(carry_out(cluster, observed()))
    assert (
        "not marked as this Pipeline's: it has no label levada.dev/pipeline; delete it" in outcome.refusals[0].message
    )
    assert ("apply", "ConfigMap", "shop-manifest") not in cluster.writes


@pytest.mark.parametrize("of", [("ConfigMap", "shop-state-4"), ("PersistentVolumeClaim", "shop-staging")])
@pytest.mark.parametrize("label", ["", "other"])
def test_state_without_its_label_is_not_to_be_deleted(of: tuple[str, str], label: str) -> None:
    """Its content is nowhere else, so the command that marks it as the Pipeline's comes first. The label is named."""
    cluster = Requests()
    cluster.there[of] = {"metadata": {"name": of[1], "labels": {"levada.dev/pipeline": label} if label else None}}
    body = pipeline(spec={"store": {"configMap": {}}, "staging": {"volumeClaim": {"size": "1Gi"}}})
    outcome = asyncio.run(carry_out(cluster, observed(body)))
    message = outcome.refusals[0].message
    assert ("its label levada.dev/pipeline is other" if label else "it has no label levada.dev/pipeline") in message
    command = f"kubectl -n data label --overwrite {of[0].lower()} {of[1]} levada.dev/pipeline=shop"
    assert f"if it is, run: {command}; otherwise delete it" in message
    assert ("apply", *of) not in cluster.writes


@pytest.mark.parametrize("labels", [None, {"levada.dev/pipeline": "other"}])
def test_own_object_without_its_label(labels: dict[str, str] | None) -> None:
    """No list has it, so the plan was made without it. It is reported as it is, and nothing is written before that."""
    cluster = Requests()
    metadata = {"name": "shop-driver", "labels": labels, "ownerReferences": [{"kind": "Pipeline", "uid": "uid-shop"}]}
    cluster.there["StatefulSet", "shop-driver"] = {"metadata": metadata}
    outcome = asyncio.run(carry_out(cluster, observed()))
    assert not outcome.refusals
    assert outcome.written[-1] == {"kind": "StatefulSet", "metadata": metadata}
    assert not [write for write in cluster.writes if write[0] == "status" or write[1] == "StatefulSet"]


@pytest.mark.parametrize("there", [False, True])
def test_table_sync_that_went_before_its_adoption(there: bool) -> None:
    """A patch without a spec cannot make it, which says nothing about the Pipeline. For one that is there it does."""

    class Refusing(Requests):
        def apply(self, body: Body) -> dict[str, Any]:
            if body["kind"] == "TableSync":
                raise RequestFailed(422, "spec: Required value")
            return super().apply(body)

    cluster = Refusing()
    if there:
        cluster.there["TableSync", "shop-public-orders"] = {"metadata": {"name": "shop-public-orders"}}
    outcome = asyncio.run(carry_out(cluster, running(table_sync(owned=False))))
    assert [r.key.name for r in outcome.refusals] == (["shop-public-orders"] if there else [])


class RefusingTables(Requests):
    """An API server that refuses all requests about some TableSyncs."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.asked = names, 0

    def _check(self, kind: str, name: str) -> None:
        if kind == "TableSync" and name.startswith(self.names):
            self.asked += 1
            raise RequestFailed(422, f'tablesyncs.levada.dev "{name}" is forbidden: the policy says no')

    def apply(self, body: Body) -> dict[str, Any]:
        self._check(body["kind"], body["metadata"]["name"])
        return super().apply(body)

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        self._check(kind, name)
        return super().apply_status(kind, namespace, name, status)


def test_refused_table_holds_back_no_other_one() -> None:
    """Neither a TableSync that is refused nor its status. Each refusal names its object and has the words."""
    report = progress(*(table_document(name) for name in ("a", "b", "c", "d")))
    cluster = RefusingTables("shop-public-a", "shop-public-c")
    outcome = asyncio.run(carry_out(cluster, running(table_sync("c"), table_sync("d"), report=report)))
    assert {name for verb, kind, name in cluster.writes if kind == "TableSync"} == {"shop-public-b", "shop-public-d"}
    assert [(r.key.name, "the policy says no" in r.message) for r in outcome.refusals] == [("shop-public-a", True)]
    assert outcome.failed is not None
    assert '"shop-public-c" is forbidden: the policy says no' in outcome.failed.message


def test_policy_that_refuses_all_tables_is_asked_about_few() -> None:
    """A namespace with thousands of them does not take the requests of others."""
    names = [f"t{number:03}" for number in range(200)]
    for there in ((), tuple(map(table_sync, names))):
        cluster = RefusingTables("shop-public-t")
        seen = running(*there, report=progress(*map(table_document, names)))
        asyncio.run(carry_out(cluster, replace(seen, table_syncs=seen.table_syncs if there else ())))
        assert 1 < cluster.asked <= 21


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (422, 'Pipeline.levada.dev "shop" is invalid: spec.source: Required value'),
        (
            500,
            "failed to create typed live object (data/shop; levada.dev/v1alpha1, Kind=Pipeline): .spec.suspend",
        ),
    ],
)
def test_stored_spec_that_the_crd_refuses_is_named_with_its_remedy(status: int, message: str) -> None:
    """No status and no finalizer can be written before it is corrected. The words of a policy have no such remedy."""
    error = RequestFailed(status, message)
    assert is_stored_invalid(error)
    text = request_text(SHOP, error)
    assert text.startswith("the stored spec does not fit the CRD, correct it: kubectl -n data edit pipeline shop.")
    assert text.endswith(message)
    policy = RequestFailed(422, 'pipelines.levada.dev "shop" is forbidden: the policy says no')
    assert not is_stored_invalid(policy)
    assert "edit" not in request_text(SHOP, policy)


def test_runner_writes_counters_seldom() -> None:
    """Counters of a Pipeline wait ten seconds, those of a table a minute. Urgent changes do not wait."""
    from tests.operator.cluster import PlanStore

    async def script() -> list[tuple[float, str]]:
        cluster, written = Requests(), []
        store = PlanStore(running(), pipeline(), [table_sync()])
        store.carry_out(reconcile(store.observe()))
        with ThreadPoolExecutor(1) as executor:
            runner = Runner(cluster, WriteBudget(Clock(), burst=1000), executor)
            for second in range(0, 130, 5):
                busy = progress(
                    table_document(lagSeconds=float(second * 7 % 90)), fetched=second, slot={"lagBytes": second << 22}
                )
                now = NOON + timedelta(seconds=second)
                seen = store.observe(report=busy, now=now, moved_at=now)
                before = len(cluster.writes)
                await runner.carry_out(reconcile(seen), seen)
                written += [(second, kind) for _, kind, _ in cluster.writes[before:]]
        return written

    told = asyncio.run(script())
    for kind, most in (("Pipeline", 13), ("TableSync", 3)):
        assert 1 <= sum(k == kind for _, k in told) <= most


def test_operator_knows_no_secrets() -> None:
    """Of the kinds that it can name at all, none is a Secret."""
    assert "Secret" not in RESOURCES


def test_page_has_every_reason() -> None:
    """docs/operator.md names every reason of a condition and of an Event."""
    from pathlib import Path

    from levada_operator.decide.conditions import PIPELINE_REASONS, TABLE_SYNC_REASONS
    from levada_operator.decide.events import EVENT_REASONS

    page = (Path(__file__).parents[2] / "docs" / "operator.md").read_text()
    reasons = {r for lists in (PIPELINE_REASONS, TABLE_SYNC_REASONS) for each in lists.values() for r in each}
    assert sorted(r for r in reasons | EVENT_REASONS.keys() if r not in page) == []
