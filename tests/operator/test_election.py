"""Leader election: no two candidates lead, whatever their clocks, their requests and the Lease do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from levada_operator.act.elector import Callbacks, Elector, LeaseKey
from levada_operator.decide.election import lease_timings
from levada_operator.kube.fenced import FencedCluster
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.observe.objects import Body

KEY = LeaseKey("levada-system", "levada-operator")
TIMINGS = lease_timings(15)


class Timeline:
    """The true time, which no candidate sees."""

    def __init__(self) -> None:
        self.now = 0.0


class Leases:
    """One Lease as an API server keeps it. ``trouble`` may lose a request or its answer."""

    def __init__(self, trouble: Callable[[], str] = lambda: "") -> None:
        self.trouble = trouble
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._before()
        return self._after(self.lease)

    def create(self, body: Body) -> dict[str, Any]:
        self._before()
        if self.lease is not None:
            raise RequestFailed(409, "it exists")
        return self._store(body)

    def replace(self, body: Body) -> dict[str, Any]:
        self._before()
        if self.lease is None:
            raise RequestFailed(404, "not found")
        if self.lease["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            raise RequestFailed(409, "the object has been modified")
        return self._store(body)

    def _store(self, body: Body) -> dict[str, Any]:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        answer = self._after(self.lease)
        assert answer is not None
        return answer

    def _before(self) -> None:
        if self.trouble() == "lost":
            raise RequestFailed(0, "no answer")

    def _after(self, answer: dict[str, Any] | None) -> dict[str, Any] | None:
        if self.trouble() == "lost":
            raise RequestFailed(0, "no answer")
        return answer


class Candidate:
    """An elector with a clock of its own: it began at some time, and is somewhat fast or slow."""

    def __init__(self, name: str, leases: Leases, time: Timeline, *, begun: float = 0.0, speed: float = 1.0) -> None:
        self.lost: list[str] = []
        self.elected = 0
        callbacks = Callbacks(self._note, self.lost.append)
        self.elector = Elector(leases, KEY, name, TIMINGS, lambda: begun + time.now * speed, callbacks)

    def _note(self) -> None:
        self.elected += 1

    @property
    def leads(self) -> bool:
        return self.elector.leads


@pytest.fixture
def time() -> Timeline:
    """The true time."""
    return Timeline()


def lead(one: Candidate, time: Timeline) -> None:
    """Let a candidate take a Lease that is not there yet, which it must see missing for the Lease's duration."""
    one.elector.try_once()
    assert not one.leads
    time.now += TIMINGS.lease_s
    one.elector.try_once()
    assert one.leads


class Pair(NamedTuple):
    """Two candidates for one Lease."""

    leases: Leases
    one: Candidate
    two: Candidate


@pytest.fixture
def pair(time: Timeline) -> Pair:
    """Two candidates, the first of which leads. Their clocks began at different times."""
    leases = Leases()
    pair = Pair(leases, Candidate("one", leases, time), Candidate("two", leases, time, begun=5000.0))
    lead(pair.one, time)
    return pair


def test_first_candidate_leads_and_the_second_stands_by(pair: Pair, time: Timeline) -> None:
    """The first writes the Lease and renews it. The second waits as long as it sees renewals."""
    leases, one, two = pair
    for _ in range(50):
        one.elector.try_once()
        two.elector.try_once()
        assert (one.leads, two.leads) == (True, False)
        time.now += 2
    assert two.elector.holder == "one"
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1


def test_killed_leader_is_replaced_after_its_time(pair: Pair, time: Timeline) -> None:
    """A Lease that a candidate has seen unchanged for its whole duration is taken, and not before."""
    _, one, two = pair
    time.now += 5.0
    two.elector.try_once()
    time.now += 14.9
    two.elector.try_once()
    assert not two.leads
    time.now += 0.1
    two.elector.try_once()
    assert two.leads
    assert not one.leads


def test_released_lease_is_taken_without_waiting(pair: Pair) -> None:
    """After SIGTERM the next candidate leads at its next turn."""
    _, one, two = pair
    two.elector.try_once()
    one.elector.release()
    assert not one.leads
    two.elector.try_once()
    assert two.leads


def test_candidate_that_never_led_releases_nothing(pair: Pair) -> None:
    """The end of a standby leaves the leader's Lease alone."""
    leases, _, two = pair
    two.elector.try_once()
    two.elector.release()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "one"


def test_times_in_the_lease_decide_nothing(pair: Pair, time: Timeline) -> None:
    """A leader whose wall clock is years behind keeps its Lease: only what a candidate measures itself counts."""
    leases, one, two = pair
    for _ in range(20):
        one.elector.try_once()
        assert leases.lease is not None
        leases.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
        two.elector.try_once()
        assert not two.leads
        time.now += 2


@pytest.mark.parametrize("duration", [30, 3600, 2**31 - 1])
def test_wait_for_a_written_lease_has_a_limit(pair: Pair, time: Timeline, duration: int) -> None:
    """A longer duration of another holder counts, up to four times the own one. Its renewTime does not count."""
    leases, _, two = pair
    assert leases.lease is not None
    spec = {"holderIdentity": "x", "leaseDurationSeconds": duration, "renewTime": "2099-01-01T00:00:00.000000Z"}
    leases.replace({**leases.lease, "spec": spec})
    two.elector.try_once()
    waits = min(duration, 4 * TIMINGS.lease_s)
    time.now += waits - 0.1
    two.elector.try_once()
    assert not two.leads
    time.now += 0.1
    two.elector.try_once()
    assert two.leads


def test_leader_without_the_api_server_stops_before_another_may_begin(time: Timeline) -> None:
    """It stops writing before a candidate's wait can end, reports the loss once, and does not lead again."""
    down = [""]
    one_sees, leases = Leases(lambda: down[0]), Leases()
    one, two = Candidate("one", one_sees, time), Candidate("two", leases, time)
    lead(one, time)
    leases.lease, leases.version = one_sees.lease, one_sees.version
    two.elector.try_once()
    down[0] = "lost"
    for _ in range(10):
        time.now += 2
        one.elector.try_once()
        two.elector.try_once()
        assert not (one.leads and two.leads)
    assert two.leads
    assert len(one.lost) == 1
    down[0] = ""
    one.elector.try_once()
    assert not one.leads


def test_leader_that_stood_still_writes_nothing(time: Timeline) -> None:
    """A process that was stopped for longer than its Lease finds the fence closed, before its elector has run.

    Dry runs do not pass either.
    """
    leases = Leases()
    one = Candidate("one", leases, time)
    lead(one, time)
    writes: list[Body] = []

    class Writes:
        def apply(self, body: Body) -> dict[str, Any]:
            writes.append(body)
            return dict(body)

        def rehearse(self, body: Body) -> None:
            writes.append(body)

    fenced = FencedCluster(Writes(), lambda: one.leads)  # type: ignore[arg-type]  # only these are called
    fenced.apply({"kind": "Job"})
    fenced.rehearse({"kind": "Job"})
    time.now += 100.0
    for request in (fenced.apply, fenced.rehearse, lambda body: fenced.set_finalizers(body, [])):
        with pytest.raises(RequestFailed):
            request({"kind": "Job"})
    assert len(writes) == 2


def test_fence_has_every_request() -> None:
    """The fence has every request that the operator makes."""
    requests = {name for name in vars(Cluster) if not name.startswith("_")}
    assert requests <= set(vars(FencedCluster))


def test_deleted_lease_is_made_again_by_its_holder(pair: Pair, time: Timeline) -> None:
    """A candidate that sees the Lease gone gives its last holder the time to notice."""
    leases, one, two = pair
    two.elector.try_once()
    time.now += 1.0
    leases.lease = None
    two.elector.try_once()
    assert not two.leads
    one.elector.try_once()
    one.elector.try_once()
    assert one.leads
    assert not two.leads


@pytest.mark.parametrize("seed", range(40))
def test_no_two_lead(seed: int) -> None:
    """Random turns of three candidates with clocks 10 % apart, requests that hang or are lost, deaths, deletions."""
    chance, time = random.Random(seed), Timeline()

    def trouble() -> str:
        time.now += chance.choice((0.0, 0.0, 0.01, 0.5, 3.0))
        check()
        return chance.choice(("", "", "", "", "lost"))

    leases = Leases(trouble)
    candidates = [
        Candidate(str(i), leases, time, begun=chance.uniform(0, 1e6), speed=chance.uniform(0.95, 1.05))
        for i in range(3)
    ]
    elected = 0

    def check() -> None:
        assert sum(c.leads for c in candidates) <= 1

    for turn in range(300):
        time.now += chance.choice((0.1, 1.0, 2.0, 2.0, 20.0))
        check()
        place = chance.randrange(3)
        one = candidates[place]
        one.elector.try_once()
        check()
        if one.lost or chance.random() < 0.02:
            elected += one.elected
            if chance.random() < 0.5:
                one.elector.release()
            candidates[place] = Candidate(f"{place}-{turn}", leases, time, begun=chance.uniform(0, 1e6))
        if chance.random() < 0.005:
            leases.lease = None
    assert elected + sum(c.elected for c in candidates) > 1
