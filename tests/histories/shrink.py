"""Shorter histories that show the same finding: parts are left out as long as it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from tests.histories.findings import Finding, Plan
from tests.histories.history import History

Play = Callable[[Sequence[History], Plan], list[Finding]]
"""Plays histories at the same time, and returns what is wrong with them."""
_TOGETHER: Final = 16
_ROUNDS: Final = 12
"""A finding is shortened no more often. Its seed shows it as well."""


def shortened(finding: Finding, play: Play) -> Finding | None:
    """Return the finding with as few steps as possible. Return None if the history alone does not show it."""
    best = _shown(finding, [finding.history], finding.plan, play)
    if best is None:
        return None
    plain = replace(finding.plan, phases=("settled",), restart=False, heal=finding.needs_heal)
    if plain != finding.plan and (simple := _shown(best, [best.history], plain, play)) is not None:
        best = simple
    size = max(1, len(best.history.steps) // 6)
    for _ in range(_ROUNDS):
        shorter = _round(best, size, play)
        if shorter is not None:
            best = shorter
        elif size == 1:
            break
        size = max(1, min(size // 2, len(best.history.steps) // 4))
    return best


def _round(best: Finding, size: int, play: Play) -> Finding | None:
    """Leave out each part of a size, then all those together without which the finding stays."""
    history = best.history
    spans = [(i, min(i + size, len(history.steps))) for i in range(0, len(history.steps), size)]
    kept: list[tuple[tuple[int, int], Finding]] = []
    for some in _chunks(spans, _TOGETHER):
        candidates = [history.without(*span) for span in some]
        found = {f.history: f for f in play(candidates, best.plan) if f.same == best.same}
        kept += [(span, found[c]) for span, c in zip(some, candidates, strict=True) if c in found]
    if len(kept) > 1:
        together = history
        for span, _ in reversed(kept):
            together = together.without(*span)
        most = history
        for span, _ in reversed(kept[::2]):
            most = most.without(*span)
        if (shorter := _shown(best, [together, most], best.plan, play)) is not None:
            return shorter
    return min((f for _, f in kept), key=_length) if kept else None


def _shown(finding: Finding, histories: Sequence[History], plan: Plan, play: Play) -> Finding | None:
    return min((f for f in play(histories, plan) if f.same == finding.same), key=_length, default=None)


def _length(finding: Finding) -> int:
    return len(finding.history.steps)


def _chunks(spans: Sequence[tuple[int, int]], size: int) -> Iterable[Sequence[tuple[int, int]]]:
    return (spans[i : i + size] for i in range(0, len(spans), size))
