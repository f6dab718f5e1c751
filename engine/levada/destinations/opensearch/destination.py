"""`OpenSearchDestination`, which writes tables to the indices of an OpenSearch cluster."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from levada.copy.rows import TableRows
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.fenced import FencedDestination, TableState, TableStates, missing
from levada.destinations.interface import Capabilities
from levada.destinations.opensearch.batches import Applied, apply_batch
from levada.destinations.opensearch.bulk import WriterAliasGone
from levada.destinations.opensearch.client import BUSY, RESYNC, Address, Client, NotFound
from levada.destinations.opensearch.copying import copy_rows
from levada.destinations.opensearch.generations import Generation, Generations, same_meta
from levada.destinations.opensearch.layout import Layout, check_fields
from levada.destinations.opensearch.naming import Naming
from levada.destinations.opensearch.settings import Settings
from levada.destinations.opensearch.state import State
from levada.destinations.ownership import Owner
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, StaleEpoch, Transient
from levada.schema import TableTarget
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class IndexState(TableState):
    """The index that the alias points to, as this driver has claimed it, and the shadow copy."""

    applied: Applied | None = None
    shadow: Applied | None = None

    def forget(self) -> None:
        """Discard the index, and its watermark. The shadow copy stays."""
        self.applied = self.seen = None


class OpenSearchDestination(FencedDestination[IndexState]):
    """Writes each source table to an index with one document per row, behind an alias.

    The watermark is stored after the documents. So delivery of a batch is at least once, and the versions of the
    documents make each repetition harmless. A table without a usable key is a changelog (`effective_mode`).
    """

    name: ClassVar[str] = "opensearch"
    capabilities: ClassVar[Capabilities] = Capabilities(upsert=True, watermark=True, replacement=True)
    settings_model = Settings

    def __init__(self, settings: Settings, context: DestinationContext) -> None:
        self._states = TableStates(lambda _: IndexState())
        self._context = context
        self._owner = Owner(context)
        self._client = Client(Address(tuple(settings.urls), context.credentials))
        self._naming = Naming(settings.prefix)
        self._generations = Generations(self._client, self._naming, settings.shards, settings.replicas)
        self._state = State(self._client, self._naming.state_index, context.full_name, settings.replicas)

    @classmethod
    def from_settings(cls, settings: Any, context: DestinationContext) -> Self:
        """Create a destination. The Secret may have the keys username, password and ca.crt."""
        assert isinstance(settings, Settings)
        return cls(settings, context)

    @classmethod
    def planned_name(cls, settings: Any, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's alias."""
        assert isinstance(settings, Settings)
        return Naming(settings.prefix).target_name(table, name)

    def startup(self) -> None:
        """Connect, and create Levada's own index."""
        answer = self._client.request("GET", "/", doing="connecting")
        version = answer.get("version", {})
        if version.get("distribution") != "opensearch":
            raise NeedsOperator(
                "destination_unsupported",
                f"the server is not OpenSearch, but {version.get('distribution') or 'another product'}"
                f" {version.get('number', '')}",
                hint="set spec.destination.opensearch.urls to an OpenSearch cluster of version 2 or later",
            )
        if not self._context.only_checks:
            self._state.create()

    def check(self) -> None:
        """Raise if an index below the prefix can be neither created nor removed."""
        index = f"{self._naming.state_index}-check-{secrets.token_hex(5)}"
        doing = f"creating the index {index}"
        self._client.request("PUT", f"/{index}", {"settings": {"number_of_replicas": 0}}, doing=doing)
        self._client.request("DELETE", f"/{index}", doing=f"removing the index {index}")

    def shutdown(self) -> None:
        """Close the connections."""
        self._client.close()

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's alias."""
        return self._naming.target_name(table, name)

    def check_place(self, target: TableTarget) -> None:
        """Raise NeedsOperator if the cluster has an index of that name which a copy must not replace."""
        self._replaceable(target)

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Remove all indices of the table. A missing one is no error.

        Raise StaleEpoch, without removing data, if a driver newer than ``epoch`` has written one of them.
        """
        state = self._table_of(target)
        with state.lock:
            found = self._replaceable(target) + [
                g
                for g in self._generations.all()
                if self._owner.owns(g.owner, target.id) and g.alias != _alias(self, target)
            ]
            for generation in found:
                if epoch is not None and self._claim(generation, epoch) is None:
                    continue
                self._remove(generation)
            state.forget()
            state.shadow = None

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Write the rows to a new index. Then the alias moves to it, and the former index is removed."""
        state = self._table_of(target)
        with state.lock:
            found = self._replaceable(target)
            if not any(g.serves for g in found):
                self._state.create()
                self._generations.claim_place(_alias(self, target), mark.epoch)
                # Another driver may have given the alias an index before.
                found = self._replaceable(target)
            former = next((g for g in found if g.serves), None)
            for generation in found:
                if generation.serves:
                    self._claim(generation, mark.epoch)
                else:
                    self._discard(generation, mark.epoch)
            state.applied = None
            state.shadow = None
            with self._fenced(state, target.id, mark.epoch):
                applied = self._copied(target, rows, mark)
                state.applied = self._serve(applied, former, target)
                state.seen = mark.lsn
        return Durability.DURABLE

    def _apply(self, state: IndexState, events: TableEvents, mark: Watermark) -> None:
        table = events.schema.id
        with self._fenced(state, table, mark.epoch):
            before = self._opened(state, table, mark.epoch)
            if before is None:
                raise missing(_alias(self, events.target), events.schema.name)
            if before.progress.lsn is None:
                raise missing(before.generation.alias, events.schema.name, "has no watermark any more")
            state.saw(before.generation.alias, before.progress.lsn, resync_command(events.schema.name))
            if mark.lsn < before.progress.lsn:
                return
            # After an error, read the stored progress again.
            state.applied = None
            policy = self._context.on_schema_change
            after = apply_batch(self._generations, self._state, before, events, mark.lsn, policy)
            moved = after.generation.index != before.generation.index
            state.applied = self._serve(after, before.generation, events.target) if moved else after
            state.seen = mark.lsn

    def applied(self, table: TableId) -> Watermark | None:
        """Return the table's watermark, or None if no alias points to a complete copy."""
        state = self._states.of(table)
        with state.lock:
            generation = self._serving(table)
            progress = None if generation is None else self._state.read(generation)
            if generation is None or progress is None or progress.lsn is None:
                return None
            state.saw(generation.alias, progress.lsn, resync_command(generation.owner.source_name))
            if state.applied is not None and state.applied.generation.index != generation.index:
                state.applied = None
            return Watermark(self._context.pipeline, progress.epoch, progress.lsn)

    def maintain(self, table: TableId) -> None:
        """Raise DestinationChanged if another client removed the index, its alias or its fields."""
        state = self._states.of(table)
        with state.lock:
            held = state.applied
            if held is None:
                return
            now = self._generations.get(held.generation.index)
            source = held.generation.owner.source_name
            if now is None or now.uuid != held.generation.uuid:
                raise missing(held.generation.alias, source)
            if not now.serves or len(self._generations.behind(now.alias)) != 1:
                raise changed(now.alias, "the alias does not point to the index that Levada writes", source)
            if not same_meta(now, held.generation):
                raise changed(now.alias, "the mapping is not the one that Levada wrote", source)

    # -- the shadow copy of a table

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the rows to a new index that no alias points to. Return False if there is no complete copy."""
        state = self._table_of(target)
        with state.lock:
            former = self._serving(target.id)
            if former is None or former.alias != _alias(self, target) or self._state.read(former) is None:
                return False
            self._claim(former, mark.epoch)
            self._drop_shadows(state, former, mark.epoch)
            made = state.shadow = self._create(target, mark.epoch)
        try:
            copy_rows(self._generations, made.generation, target.schema, rows, mark.epoch, mark.lsn)
        except WriterAliasGone:
            raise Transient(
                "destination_busy", f"the shadow copy of {made.generation.alias} was removed", hint=BUSY
            ) from None
        with state.lock:
            if state.shadow is made:
                state.shadow = made.with_progress(self._state.save(made.progress.at(mark.lsn), made.generation.alias))
        return True

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the batch to the shadow copy. Return False if the batch changes the columns."""
        (table,) = events.tables
        changes, state = events.changes(table), self._states.of(table)
        with state.lock:
            made = state.shadow
            if made is None or Layout.of(changes.schema, made.generation.layout.mode) != made.generation.layout:
                return False
            if self._generations.claim(made.generation, mark.epoch) is None:
                return False
            state.shadow = None
            after = apply_batch(self._generations, self._state, made, changes, mark.lsn, self._context.on_schema_change)
            if after.generation.index != made.generation.index:
                self._remove(made.generation)
            state.shadow = after
            return True

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Move the alias to the shadow copy, with the watermark ``mark``, and remove the former index.

        Raise StaleEpoch if a newer driver has claimed the former index.
        """
        state = self._states.of(table)
        with state.lock:
            made, former = state.shadow, self._serving(table)
            if made is None or former is None or self._generations.claim(made.generation, mark.epoch) is None:
                return False
            self._claim(former, mark.epoch)
            # The alias moves after the watermark is stored, so readers and `applied` see both or none.
            progress = self._state.save(made.progress.at(mark.lsn), made.generation.alias)
            # An earlier request may have moved the alias, although its answer was lost.
            generation = former
            if former.index != made.generation.index:
                try:
                    generation = self._generations.serve(made.generation, mark.epoch, former)
                except NotFound:
                    self._claim(former, mark.epoch)
                    return False
            state.shadow, state.applied, state.seen = None, Applied(generation, progress), mark.lsn
            if former.index != generation.index:
                self._remove_quietly(former)
            return True

    def drop_replacement(self, table: TableId) -> None:
        """Remove the index of the shadow copy, unless the alias has moved to it, or a newer driver has claimed it."""
        state = self._states.of(table)
        with state.lock:
            made, state.shadow = state.shadow, None
            if made is None:
                return
            epoch = made.progress.epoch
            # The answer to a request of `swap_replacement` may have been lost, or the request may still be on its way.
            now = self._generations.withdraw(made.generation, epoch)
            state.applied = None
            if now is not None and not now.serves and now.epoch <= epoch:
                self._remove(now)

    # -- generations

    def _replaceable(self, target: TableTarget) -> list[Generation]:
        """Return the generations of the table's alias. Raise DestinationChanged if a copy must not replace one."""
        alias = _alias(self, target)
        self._generations.check_free(alias)
        found = self._generations.of_alias(alias)
        for generation in found:
            self._owner.require_replaceable(alias, generation.owner, target.schema)
        return found

    def _serving(self, table: TableId) -> Generation | None:
        """Return the index that the table's alias points to. Raise DestinationChanged if there are several."""
        return _only_serving(self._owned(table))

    def _owned(self, table: TableId) -> list[Generation]:
        return [g for g in self._generations.all() if self._owner.owns(g.owner, table)]

    def _claim(self, generation: Generation, epoch: int) -> Applied | None:
        """Make this driver the only writer. Return None if the index is gone."""
        progress = self._state.claim(generation, epoch)
        claimed = self._generations.claim(generation, epoch)
        return None if claimed is None else Applied(claimed, progress)

    def _opened(self, state: IndexState, table: TableId, epoch: int) -> Applied | None:
        held = state.applied
        if held is not None and held.progress.epoch == epoch:
            return held
        owned = self._owned(table)
        serving = _only_serving(owned)
        held = state.applied = None if serving is None else self._claim(serving, epoch)
        if held is None:
            return None
        if not held.generation.serves:
            state.applied = None
            raise Transient("destination_busy", f"{held.generation.alias}: the alias moves at this moment", hint=BUSY)
        shadow = None if state.shadow is None else state.shadow.generation.index
        for generation in owned:
            # An attempt that failed, or a driver that was killed, has left it.
            if generation.alias == held.generation.alias and generation.index not in (held.generation.index, shadow):
                with _logged(generation):
                    self._discard(generation, epoch)
        return held

    def _create(self, target: TableTarget, epoch: int) -> Applied:
        layout = Layout.of(target.schema, self.effective_mode(target))
        check_fields(target.schema, layout)
        owner, alias = self._owner.of(target.schema), _alias(self, target)
        generation = self._generations.create(alias, owner, layout, target.schema.key, epoch)
        return Applied(generation, self._state.claim(generation, epoch))

    def _copied(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Applied:
        made = self._create(target, mark.epoch)
        try:
            copy_rows(self._generations, made.generation, target.schema, rows, mark.epoch, mark.lsn)
        except WriterAliasGone:
            raise
        except BaseException:
            self._remove_quietly(made.generation)
            raise
        return made.with_progress(self._state.save(made.progress.at(mark.lsn), made.generation.alias))

    def _serve(self, after: Applied, former: Generation | None, target: TableTarget) -> Applied:
        try:
            generation = self._generations.serve(after.generation, after.progress.epoch, former)
        except NotFound:
            raise WriterAliasGone(
                "destination_table_missing", f"{_alias(self, target)}: the index is missing", hint=RESYNC
            ) from None
        if former is not None:
            self._remove_quietly(former)
        return Applied(generation, after.progress)

    def _drop_shadows(self, state: IndexState, serving: Generation, epoch: int) -> None:
        for generation in self._generations.of_alias(serving.alias):
            if not generation.serves and self._owner.owns(generation.owner, serving.owner.table):
                self._discard(generation, epoch)
        state.shadow = None

    def _discard(self, generation: Generation, epoch: int) -> None:
        """Remove an index that no reader sees. A late request to move the alias to it fails, or keeps it."""
        if self._generations.claim(generation, epoch) is None:
            return
        now = self._generations.withdraw(generation, epoch)
        if now is not None and not now.serves:
            self._remove(now)

    def _remove(self, generation: Generation) -> None:
        self._generations.drop(generation)
        self._state.forget(generation)

    def _remove_quietly(self, generation: Generation) -> None:
        with _logged(generation):
            self._remove(generation)

    @contextmanager
    def _fenced(self, state: IndexState, table: TableId, epoch: int) -> Iterator[None]:
        """Explain a removed writer's alias: by a newer driver, or by another client."""
        try:
            yield
        except WriterAliasGone as error:
            state.applied = None
            serving = self._serving(table)
            if serving is not None and serving.epoch > epoch:
                raise StaleEpoch(epoch, serving.epoch) from None
            if serving is None:
                raise DestinationChanged(error.code, error.message, hint="levada resync MANIFEST TABLE") from None
            raise Transient(
                "destination_busy", f"{serving.alias}: the alias of the writer was removed", hint=BUSY
            ) from None


@contextmanager
def _logged(generation: Generation) -> Iterator[None]:
    try:
        yield
    except StaleEpoch:
        raise
    except LevadaError as error:
        _log.warning("%s is not removed, a later batch or copy removes it: %s", generation.index, error.message)


def _only_serving(owned: list[Generation]) -> Generation | None:
    found = [g for g in owned if g.serves]
    if len(found) > 1:
        raise changed(found[0].alias, "the alias points to several indices", found[0].owner.source_name)
    return found[0] if found else None


def _alias(destination: OpenSearchDestination, target: TableTarget) -> str:
    return destination.target_name(target.schema.name, target.name).name


def changed(alias: str, what: str, table: QualifiedTable) -> DestinationChanged:
    """Return the error for an index that another client changed."""
    return DestinationChanged(
        "foreign_schema_change", f"{alias}: {what}", hint=f"copy the table again: {resync_command(table)}"
    )
