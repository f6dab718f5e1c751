"""Shorter histories that show the same finding: parts are left out as long as it stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.histories.findings import Finding, Plan
from tests.histories.history import History

Play = Callable[[Sequence[History], Plan], list[Finding]]
"""Plays histories at the same time, and returns what is wrong with them."""
_TOGETHER: Final = 16
_ROUNDS: Final = 16
"""A finding is shortened no more often. Its seed shows it as well."""
_CREATED: Final = re.compile(r"^CREATE TABLE (\S+)")
_CONTROL: Final = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PREPARE"})
"""The first words of statements that begin and end transactions."""


def shortened(finding: Finding, play: Play) -> Finding | None:
    """Return the finding with as few steps as possible. Return None if the history alone does not show it."""
    first = [finding.history, *_of_fewer_tables(finding.history)]
    plain = replace(finding.plan, phases=("settled",), restart=False, heal=finding.needs_heal)
    best = _shown(finding, first, plain, play)
    if best is None and plain != finding.plan:
        best = _shown(finding, first, finding.plan, play)
    if best is None:
        return None
    size = max(1, len(best.history.steps) // 6)
    for _ in range(_ROUNDS):
        shorter = _round(best, size, play)
        if shorter is not None:
            best = shorter
        elif size == 1:
            break
        size = max(1, min(size // 2, len(best.history.steps) // 4))
    for _ in range(_ROUNDS):
        if (shorter := _shown(best, list(_of_fewer_parts(best.history)), best.plan, play)) is None:
            break
        best = shorter
    return best


def fewest(histories: Sequence[History], ends: Callable[[Sequence[History]], bool]) -> Sequence[History]:
    """Return the smallest part, found by halves, that was seen to end the engine.

    It is one history, or several that end it only together. All of them are known to end it, once.
    """
    while len(histories) > 1:
        middle = len(histories) // 2
        half = next((some for some in (histories[:middle], histories[middle:]) if ends(some)), None)
        if half is None:
            break
        histories = half
    return histories


def _of_fewer_tables(history: History) -> Iterator[History]:
    """Yield the history without each table and of each one alone, also with each statement in a transaction of its own.

    Most statements are about tables which the finding is not about.
    """
    tables = sorted({step.table for step in history.steps} - {""})
    parts = [{table} for table in tables] + [set(tables) - {table} for table in tables] if len(tables) > 1 else []
    for kept in ({*tables}, *parts):
        others = set(tables) - kept
        steps = tuple(s for s in history.steps if not others & {s.table, *_CREATED.findall(s.sql)})
        alone = tuple(s for s in steps if s.table or s.sql.split()[0] not in _CONTROL)
        yield from (replace(history, steps=some) for some in (steps, alone) if 0 < len(some) < len(history.steps))


def parts_of(sql: str) -> list[str]:
    """Return the statements that a step sends together. The body of a DO is a part of one."""
    parts: list[str] = []
    for text in sql.split("; "):
        if parts and parts[-1].count("$") % 4:
            parts[-1] += f"; {text}"
        else:
            parts.append(text)
    return parts


def _of_fewer_parts(history: History) -> Iterator[History]:
    """Yield the history without one half or one statement of each step that sends several together."""
    for number, step in enumerate(history.steps):
        parts = parts_of(step.sql)
        for size in sorted({(len(parts) + 1) // 2, 1}) if len(parts) > 1 else ():
            for start in range(0, len(parts), size):
                fewer = replace(step, sql="; ".join(parts[:start] + parts[start + size :]))
                yield replace(history, steps=(*history.steps[:number], fewer, *history.steps[number + 1 :]))


def _round(best: Finding, size: int, play: Play) -> Finding | None:
    """Leave out each part of a size, then as many as possible of those without which the finding stays."""
    history = best.history
    spans = [(i, min(i + size, len(history.steps))) for i in range(0, len(history.steps), size)]
    kept: list[tuple[tuple[int, int], Finding]] = []
    for some in _chunks(spans, _TOGETHER):
        candidates = [history.without(*span) for span in some]
        found = {f.history: f for f in play(candidates, best.plan) if f.same == best.same}
        kept += [(span, found[c]) for span, c in zip(some, candidates, strict=True) if c in found]
    if len(kept) > 1:
        left_out = [span for span, _ in kept]
        fewer = list(dict.fromkeys(_without(history, some) for some in _parts(left_out)))
        if (shorter := _shown(best, fewer, best.plan, play)) is not None:
            return shorter
    return min((f for _, f in kept), key=_length) if kept else None


def _parts(spans: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield all of them, and halves and quarters of them."""
    middle, quarter = len(spans) // 2, len(spans) // 4
    yield from (spans, spans[:middle], spans[middle:], spans[::2], spans[1::2])
    yield from (spans[quarter:], spans[: -quarter or None], spans[quarter : -quarter or None])


def _without(history: History, spans: Sequence[tuple[int, int]]) -> History:
    for span in reversed(spans):
        history = history.without(*span)
    return history


def _shown(finding: Finding, histories: Sequence[History], plan: Plan, play: Play) -> Finding | None:
    found = play(histories, plan) if histories else []
    return min((f for f in found if f.same == finding.same), key=_length, default=None)


def _length(finding: Finding) -> int:
    """Return the number of statements."""
    return sum(len(parts_of(step.sql)) for step in finding.history.steps)


def _chunks(spans: Sequence[tuple[int, int]], size: int) -> Iterable[Sequence[tuple[int, int]]]:
    return (spans[i : i + size] for i in range(0, len(spans), size))
