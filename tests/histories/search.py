"""The search for findings in one kind of world: batches of new histories, each finding shortened once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from tests.histories.batch import Batch
from tests.histories.findings import Finding, Plan, Tally
from tests.histories.history import History
from tests.histories.shrink import fewest, shortened
from tests.histories.world import EngineEndedError, Form, World, world

from levada.local.postgres import EmbeddedPostgres

_WAYS: Final = (
    "settled", "settled", "settled", "settled", "at once", "stopped", "killed", "killed in between", "killed often"
)  # fmt: skip
_SOON_S: Final = 10.0
"""The time in which a shorter history has to show a finding."""


@dataclass
class Search:
    """Plays histories on one engine after the other."""

    server: EmbeddedPostgres
    form: Form
    size: int = 12
    wanted: str = ""
    """A part of the sign of the findings that are shortened, empty for all."""
    tally: Tally = field(default_factory=Tally)
    findings: list[Finding] = field(default_factory=list)
    """The first of each kind, shortened."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _stack: ExitStack = field(default_factory=ExitStack)
    _world: World | None = None

    def batch(self, seed: int) -> None:
        """Play the histories of the seeds from this one on."""
        begun = time.monotonic()
        plan = plan_of(seed)
        seeds = list(range(seed, seed + self.size))
        batch = Batch(self.world, plan, self.tally, known=frozenset(self.counts))
        try:
            found = batch.play(seeds)
        except EngineEndedError as error:
            found = self._ended(batch.made, plan, str(error))
        new: dict[tuple[str, str], Finding] = {}
        for finding in found:
            self.counts[finding.same] += 1
            if self.counts[finding.same] == 1:
                new[finding.same] = finding
        print(
            f"seeds {seed} to {seed + self.size - 1}, {plan}: {len(found)} findings,"
            f" {time.monotonic() - begun:.0f} s", flush=True,
        )  # fmt: skip
        for finding in new.values():
            print(f"    ({finding.oracle}) {finding.sign}, seed {finding.history.seed}: {finding.detail}", flush=True)
        for finding in sorted(new.values(), key=lambda f: f.oracle):
            if self.wanted in finding.sign:
                self._report(finding)

    @property
    def world(self) -> World:
        """The running world, or a new one after the engine ended."""
        if self._world is None:
            self._world = self._stack.enter_context(world(self.server, self.form))
        return self._world

    def close(self) -> None:
        """End the world."""
        self._stack.close()
        self._world = None

    def _report(self, finding: Finding) -> None:
        begun = time.monotonic()
        with self._of_one_transform(finding.history.transform):
            shorter = shortened(finding, self._play)
        took = f"shortened in {time.monotonic() - begun:.0f} s" if shorter else "not shown by its history alone"
        self.findings.append(shorter or finding)
        print(f"\nFINDING, {took}\n{shorter or finding}\n", flush=True)

    @contextmanager
    def _of_one_transform(self, transform: str) -> Iterator[None]:
        """Play on a world whose tables are all partitioned in one way, if a history has such a table."""
        if not transform:
            yield
            return
        former = self.form
        self.close()
        self.form = replace(former, transform=transform)
        yield
        self.close()
        self.form = former

    def _play(self, histories: Sequence[History], plan: Plan) -> list[Finding]:
        """Play candidates, each alone once one of them has ended the engine."""
        try:
            return Batch(self.world, plan, patience_s=_SOON_S).play(histories)
        except EngineEndedError as error:
            self.close()
            if len(histories) == 1:
                return [_ending(histories[0], plan, self.form, str(error))]
        return [finding for history in histories for finding in self._play([history], plan)]

    def _ended(self, histories: Sequence[History], plan: Plan, log: str) -> list[Finding]:
        """Return what is wrong with those of the histories that end the engine. They are searched by halves."""
        self.close()
        one, *others = fewest(histories, lambda some: self._ends(some, plan))
        together = f"seed {one.seed} together with {', '.join(str(o.seed) for o in others)}: " if others else ""
        return [_ending(one, plan, self.form, log, together)]

    def _ends(self, histories: Sequence[History], plan: Plan) -> bool:
        """Return True if the histories end a new engine. One that has played others may end because of those."""
        try:
            Batch(self.world, plan, patience_s=_SOON_S).play(histories)
        except EngineEndedError:
            return True
        finally:
            self.close()
        return False


def _ending(history: History, plan: Plan, form: Form, log: str, together: str = "") -> Finding:
    reason, _, text = log.partition("\n")
    errors = [line for line in text.splitlines() if "error" in line.lower()] or [text[-300:]]
    codes = [word[1:-1] for word in errors[-1].split() if word.startswith("[") and word.endswith("]")]
    return Finding("b", codes[-1] if codes else "ended", f"{together}{reason}: {errors[-1]}", history, plan, str(form))


def plan_of(seed: int) -> Plan:
    """Return how the engine fares in the batch that begins with this seed."""
    rng = random.Random(f"plan {seed}")
    return Plan((rng.choice(_WAYS), rng.choice(_WAYS)), restart=rng.random() < 0.3)
