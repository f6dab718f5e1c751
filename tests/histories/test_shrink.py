"""The shrinker, over histories that show a finding by what they contain."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.histories.findings import Finding, Plan
from tests.histories.history import History, Step
from tests.histories.shrink import fewest, parts_of, shortened


def _finding(history: History, plan: Plan) -> Finding:
    return Finding("a", "columns", "differ", history, plan, "none")


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.integers(31, 40))
def test_only_the_steps_that_matter_remain(needed: set[int], length: int) -> None:
    """A history keeps the steps without which nothing is found, in their order, and is played in a plain way."""
    history = History(1, tuple(Step("insert", str(i)) for i in range(length)))

    def play(histories: Sequence[History], plan: Plan) -> list[Finding]:
        return [_finding(h, plan) for h in histories if {str(i) for i in needed} <= {s.sql for s in h.steps}]

    found = shortened(_finding(history, Plan(("killed", "at once"), restart=True)), play)
    assert found is not None
    assert [s.sql for s in found.history.steps] == [str(i) for i in sorted(needed)]
    assert found.plan == Plan(("settled",), heal=False)


def test_a_finding_that_another_history_caused() -> None:
    """A history that shows nothing by itself is not shortened."""
    history = History(1, (Step("insert", "1"),))
    assert shortened(_finding(history, Plan()), lambda histories, plan: []) is None


def test_statements_of_one_step() -> None:
    """A step that sends several statements together keeps those that matter. The body of a DO stays whole."""
    block = "DO $do$ BEGIN BEGIN INSERT 1; END; BEGIN INSERT 2; END; END $do$"
    step = Step("insert", "; ".join([block, *map(str, range(9)), "DO $$ BEGIN UPDATE 1; UPDATE 2; END $$"]))

    def play(histories: Sequence[History], plan: Plan) -> list[Finding]:
        return [_finding(h, plan) for h in histories if h.steps and {block, "3", "7"} <= set(parts_of(h.steps[-1].sql))]

    found = shortened(_finding(History(1, (step,)), Plan()), play)
    assert found is not None
    assert [s.sql for s in found.history.steps] == [f"{block}; 3; 7"]


@given(st.integers(1, 13), st.data())
def test_histories_that_end_the_engine(count: int, data: st.DataObject) -> None:
    """Those that remain have ended it by themselves. A history that does not is never named alone."""
    histories = [History(seed, ()) for seed in range(count)]
    needed = set(data.draw(st.sets(st.sampled_from(range(count)), min_size=1, max_size=2)))
    played: list[Sequence[History]] = [histories]

    def ends(some: Sequence[History]) -> bool:
        played.append(some)
        return needed <= {history.seed for history in some}

    found = fewest(histories, ends)
    assert found in played
    assert needed <= {history.seed for history in found}
    assert len(found) == 1 or len(needed) == 2


def test_histories_that_end_the_engine_once() -> None:
    """If no part does it again, all of them are named."""
    histories = [History(seed, ()) for seed in range(5)]
    assert fewest(histories, lambda some: False) == histories
