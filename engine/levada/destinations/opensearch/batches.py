"""One batch of changes, applied to a generation, with the watermark after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from levada.destinations.fenced import check_same_table
from levada.destinations.interface import OnSchemaChange
from levada.destinations.opensearch.changelog import append_changes
from levada.destinations.opensearch.evolution import Evolution, check_rewrite, evolve
from levada.destinations.opensearch.generations import Generation, Generations
from levada.destinations.opensearch.layout import Layout
from levada.destinations.opensearch.rewriting import rewrite
from levada.destinations.opensearch.state import Progress, State
from levada.destinations.opensearch.upsert import Upsert
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, TableMode

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """A generation that this driver has claimed, and its stored progress."""

    generation: Generation
    progress: Progress

    def with_progress(self, progress: Progress) -> Applied:
        """Return the generation with its newly stored progress."""
        return Applied(self.generation, progress)


def apply_batch(
    generations: Generations,
    state: State,
    before: Applied,
    changes: TableEvents,
    until: Lsn,
    policy: OnSchemaChange,
) -> Applied:
    """Apply the changes and store the watermark ``until``.

    Return the generation with the result. It is another one after a truncate and after some changes of the columns. The
    caller then moves the alias to it.
    """
    schema, layout = changes.schema, before.generation.layout
    after = before.progress.lsn or changes.after
    same_key = schema.key == before.generation.key
    check_same_table(before.generation.alias, schema, layout.mode, made_as=layout.mode, same_key=same_key)
    evolution = evolve(layout, schema, policy)
    truncates = [t for t in changes.truncates if t.commit_lsn >= after and layout.mode is TableMode.UPSERT]
    position = (int(truncates[-1].commit_lsn), truncates[-1].ordinal) if truncates else None
    made = _evolved(generations, state, before, schema, evolution, truncated=bool(truncates))
    if layout.mode is TableMode.UPSERT:
        upsert = Upsert(generations.client, state, made.generation, made.progress, schema)
        upsert.run(changes, position)
        made = made.with_progress(upsert.progress)
    else:
        append_changes(generations.client, made.generation, made.progress, changes, schema)
    if made.progress.at(until) == made.progress:
        return made
    journal = made.progress.journal
    saved = made.with_progress(state.save(made.progress.at(until), made.generation.alias))
    if journal is not None:
        state.drop_journal(made.generation.index, journal, made.generation.alias)
    return saved


def _evolved(
    generations: Generations,
    state: State,
    before: Applied,
    schema: ReplicatedTableSchema,
    evolution: Evolution,
    *,
    truncated: bool,
) -> Applied:
    """Return the generation to which the changes are applied."""
    old = before.generation
    if evolution.changes:
        _log.info("%s: %s", old.alias, "; ".join(evolution.changes))
    if not truncated and not evolution.rewrites:
        if evolution.layout == old.layout:
            return before
        return Applied(generations.add_fields(old, evolution.layout), before.progress)
    if evolution.rewrites and not truncated:
        check_rewrite(old.layout, evolution, schema)
    epoch = before.progress.epoch
    new = _next(generations, old, evolution.layout, epoch)
    progress = state.claim(new, epoch)
    if truncated:
        return Applied(new, replace(progress, lsn=before.progress.lsn))
    rewrite(generations, old, new, evolution, epoch)
    progress = replace(progress, lsn=before.progress.lsn, version=before.progress.version)
    if before.progress.journal is not None:
        entries = state.read_journal(before.progress, old.alias)
        progress = state.put_journal(progress, before.progress.journal.version, entries, old.alias)
    return Applied(new, state.save(progress, new.alias))


def _next(generations: Generations, old: Generation, layout: Layout, epoch: int) -> Generation:
    return generations.create(old.alias, old.owner, layout, old.key, epoch)
