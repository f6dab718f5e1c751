"""The indices of tables. Each copy of a table is a generation: an index of its own, which its alias may point to.

Readers use the alias of the table. A driver writes through an alias that has its epoch in its name, the writer's alias.
A newer driver replaces it in one atomic request, and from then on OpenSearch refuses the requests of the older one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.destinations.fenced import require_epoch
from levada.destinations.opensearch.client import BUSY, UNAVAILABLE, Client, NotFound
from levada.destinations.opensearch.layout import Field, Layout
from levada.destinations.opensearch.naming import (
    GENERATION,
    Naming,
    new_generation,
    place_alias,
    writer_alias,
    writer_epoch,
)
from levada.destinations.ownership import TableOwner, not_ours
from levada.errors import Transient
from levada.values import QualifiedTable, TableId, TableMode

KEPT_DELETES: Final = "1h"
"""The time for which a deleted document keeps its version. It exceeds by far the time of a request in flight.

A replay does not depend on it, because the watermark advances with each piece of a batch.
"""
_META: Final = "levada"
_CLAIMS: Final = 5
_FIELDS: Final = 5000
"""OpenSearch's limit of fields, above the 1600 columns of PostgreSQL, each with a keyword, and those of a changelog."""
COMPLETE: Final[Mapping[str, Any]] = {
    "_source": {"enabled": True, "includes": [], "excludes": []},
    "_routing": {"required": False},
}
"""The part of a mapping without which a template of the user's could leave out fields, or refuse documents."""


@dataclass(frozen=True, slots=True)
class Generation:
    """An index of a table. ``aliases`` are those at the time when it was read."""

    index: str
    uuid: str
    alias: str
    owner: TableOwner
    layout: Layout
    key: tuple[int, ...]
    aliases: frozenset[str] = frozenset()

    @property
    def serves(self) -> bool:
        """Return True if readers see this index through the table's alias."""
        return self.alias in self.aliases

    @property
    def epoch(self) -> int:
        """The highest epoch of a driver that has claimed the index, or -1."""
        return max((e for a in self.aliases if (e := writer_epoch(a)) is not None), default=-1)

    def meta(self) -> dict[str, Any]:
        """Return the ``_meta`` of the index's mapping."""
        return {
            _META: {
                "alias": self.alias,
                "owner": _owner_json(self.owner),
                "mode": self.layout.mode.value,
                "key": list(self.key),
                "fields": [f.to_json() for f in self.layout.fields],
            }
        }


@dataclass(frozen=True, slots=True)
class Generations:
    """The requests on indices and their aliases."""

    client: Client
    naming: Naming
    shards: int
    replicas: int

    def all(self) -> Iterator[Generation]:
        """Return the generations of all tables below the prefix, of whatever pipeline."""
        return self._find(self.naming.all_generations)

    def of_alias(self, alias: str) -> list[Generation]:
        """Return the generations that were made for an alias."""
        return [g for g in self._find(f"{alias}{GENERATION}*") if g.alias == alias]

    def get(self, index: str) -> Generation | None:
        """Return a generation as it is now, or None if it does not exist."""
        return next(iter(self._find(index)), None)

    def behind(self, alias: str) -> list[str]:
        """Return the names of all indices that an alias points to."""
        try:
            return sorted(self.client.request("GET", f"/_alias/{alias}", doing=f"reading the alias {alias}"))
        except NotFound:
            return []

    def check_free(self, alias: str) -> None:
        """Raise DestinationChanged ``table_not_ours`` if the alias is an index, or points to one, that is not ours."""
        try:
            found = self.client.request(
                "GET", f"/{alias}", doing=f"looking for {alias}", filter_path="*.mappings._meta"
            )
        except NotFound:
            return
        # An index without _meta is missing from the filtered answer.
        answer = self.client.request("GET", f"/{alias}/_settings/index.uuid", doing=f"looking for {alias}")
        for index in answer:
            meta = found.get(index, {}).get("mappings", {}).get("_meta", {}).get(_META)
            if index == alias or not isinstance(meta, dict) or meta.get("alias") != alias:
                raise not_ours(alias, f"is the index {index}, which was not created by Levada")

    def create(self, alias: str, owner: TableOwner, layout: Layout, key: tuple[int, ...], epoch: int) -> Generation:
        """Create an index that no reader sees yet, with the writer's alias of the driver with this epoch."""
        index = new_generation(alias)
        made = Generation(index, "", alias, owner, layout, key, frozenset({writer_alias(index, epoch)}))
        # Explicit, because a template of the user's may match the name.
        settings = {
            "number_of_shards": self.shards,
            "number_of_replicas": self.replicas,
            "refresh_interval": "-1",
            "gc_deletes": KEPT_DELETES,
            "translog.durability": "request",
            "default_pipeline": "_none",
            "final_pipeline": "_none",
            "mapping.total_fields.limit": _FIELDS,
        }
        mappings = {"dynamic": "strict", "_meta": made.meta(), "properties": layout.properties, **COMPLETE}
        body = {"settings": {"index": settings}, "mappings": mappings, "aliases": {a: {} for a in made.aliases}}
        doing = f"creating an index for {alias}"
        answer = self.client.request("PUT", f"/{index}", body, doing=doing, wait_for_active_shards=1)
        if not answer.get("shards_acknowledged"):
            raise Transient("destination_unavailable", f"{doing}: no shard of {index} is active", hint=UNAVAILABLE)
        created = self.get(index)
        if created is None:
            raise Transient("destination_unavailable", f"{doing}: {index} is gone", hint=UNAVAILABLE)
        return created

    def claim_place(self, alias: str, epoch: int) -> None:
        """Make the driver with this epoch the only one that may give the alias its first index.

        An alias of Levada's own index, with the epoch in its name, stands for that right. `serve` ends it. Raise
        StaleEpoch if a newer driver has the right.
        """
        index, place = self.naming.state_index, place_alias(alias, epoch)
        doing = f"claiming the alias {alias}"
        for _ in range(_CLAIMS):
            found = self.client.request("GET", f"/{index}/_alias", doing=doing)
            held = [a for entry in found.values() for a in entry["aliases"] if a.startswith(place_alias(alias))]
            newest = max((e for a in held if (e := writer_epoch(a)) is not None), default=-1)
            require_epoch(newest, epoch)
            if held == [place]:
                return
            removals = [{"remove": {"index": index, "alias": a, "must_exist": True}} for a in held if a != place]
            try:
                self._change([*removals, {"add": {"index": index, "alias": place}}], doing)
            except NotFound:
                continue
            return
        raise Transient("destination_busy", f"other drivers claim {alias} at the same moment", hint=BUSY)

    def claim(self, generation: Generation, epoch: int) -> Generation | None:
        """Make the driver with this epoch the only writer of the index. Return None if the index is gone.

        Raise StaleEpoch if a newer driver has claimed it.
        """
        for _ in range(_CLAIMS):
            now = self.get(generation.index)
            if now is None or now.uuid != generation.uuid:
                return None
            require_epoch(now.epoch, epoch)
            mine = writer_alias(now.index, epoch)
            older = [a for a in now.aliases if writer_epoch(a) is not None and a != mine]
            if not older and mine in now.aliases:
                return now
            # It fails if another driver has removed one of them in the meantime.
            removals = [{"remove": {"index": now.index, "alias": a, "must_exist": True}} for a in older]
            try:
                self._change([*removals, {"add": {"index": now.index, "alias": mine}}], f"claiming {now.index}")
            except NotFound:
                continue
            return replace(now, aliases=(now.aliases - set(older)) | {mine})
        raise Transient("destination_busy", f"other drivers claim {generation.index} at the same moment", hint=BUSY)

    def serve(self, generation: Generation, epoch: int, instead_of: Generation | None) -> Generation:
        """Let the table's alias point to the index instead of the former one, in one atomic request.

        Raise NotFound if this driver is no longer the writer of both, or if the former index is gone. Without a former
        index, raise it if this driver has lost the place (`claim_place`). The former index stays, because a request
        cannot both remove an index and depend on its aliases.
        """
        doing = f"moving the alias {generation.alias}"
        # The default interval, instead of that of a copy.
        body = {"index": {"refresh_interval": None}}
        self.client.request("PUT", f"/{generation.index}/_settings", body, doing=doing)
        self.refresh(generation)
        mine = {"index": generation.index, "alias": writer_alias(generation.index, epoch)}
        actions: list[Mapping[str, Any]] = [
            {"remove": {**mine, "must_exist": True}},
            {"add": mine},
            {"add": {"index": generation.index, "alias": generation.alias}},
        ]
        if instead_of is None:
            place = place_alias(generation.alias, epoch)
            actions.append({"remove": {"index": self.naming.state_index, "alias": place, "must_exist": True}})
        else:
            former = (writer_alias(instead_of.index, epoch), instead_of.alias)
            actions += [{"remove": {"index": instead_of.index, "alias": a, "must_exist": True}} for a in former]
        self._change(actions, doing)
        return replace(generation, aliases=generation.aliases | {generation.alias})

    def withdraw(self, generation: Generation, epoch: int) -> Generation | None:
        """End the driver's right to write the index, and so also a late request to serve it.

        Return the index as it is then, or None if it is gone.
        """
        mine = {"index": generation.index, "alias": writer_alias(generation.index, epoch), "must_exist": True}
        with suppress(NotFound):
            self._change([{"remove": mine}], f"withdrawing {generation.index}")
        return self.get(generation.index)

    def drop(self, generation: Generation) -> None:
        """Remove the index. A missing one is no error."""
        try:
            self.client.request("DELETE", f"/{generation.index}", doing=f"removing {generation.index}")
        except NotFound:
            return

    def add_fields(self, generation: Generation, layout: Layout) -> Generation:
        """Add the fields of ``layout`` that the index lacks, and record it."""
        now = replace(generation, layout=layout)
        body = {"dynamic": "strict", "_meta": now.meta(), "properties": layout.properties}
        self.client.request("PUT", f"/{now.index}/_mapping", body, doing=f"adding fields to {now.index}")
        return now

    def refresh(self, generation: Generation) -> None:
        """Let searches see all documents. Raise Transient if a shard does not answer."""
        doing = f"refreshing {generation.index}"
        answer = self.client.request("POST", f"/{generation.index}/_refresh", doing=doing)
        _check_shards(answer, doing)

    def count(self, generation: Generation) -> int:
        """Return the number of documents that searches see."""
        doing = f"counting {generation.index}"
        answer = self.client.request("GET", f"/{generation.index}/_count", doing=doing)
        _check_shards(answer, doing)
        # A shard that no node has is not among the failed ones.
        if answer["_shards"]["successful"] != answer["_shards"]["total"]:
            raise Transient("destination_unavailable", f"{doing}: a shard has no node", hint=UNAVAILABLE)
        return int(answer["count"])

    def _change(self, actions: list[Mapping[str, Any]], doing: str) -> None:
        self.client.request("POST", "/_aliases", {"actions": actions}, doing=doing)

    def _find(self, pattern: str) -> Iterator[Generation]:
        try:
            found = self.client.request(
                "GET",
                f"/{pattern}",
                doing=f"looking for indices {pattern}",
                filter_path="*.mappings._meta,*.aliases,*.settings.index.uuid",
                expand_wildcards="all",
            )
        except NotFound:
            return
        for index, entry in sorted(found.items()):
            meta = entry.get("mappings", {}).get("_meta", {}).get(_META)
            if (made := _parsed(index, entry, meta)) is not None:
                yield made


def _check_shards(answer: Mapping[str, Any], doing: str) -> None:
    """Raise Transient if a shard failed. OpenSearch answers 200 then, as if it were complete."""
    if answer["_shards"]["failed"]:
        raise Transient("destination_unavailable", f"{doing}: a shard does not answer", hint=UNAVAILABLE)


def _parsed(index: str, entry: Mapping[str, Any], meta: Any) -> Generation | None:
    """Return the generation, or None for an index whose ``_meta`` is not Levada's."""
    try:
        layout = Layout(tuple(map(Field.from_json, meta["fields"])), TableMode(meta["mode"]))
        return Generation(
            index,
            entry["settings"]["index"]["uuid"],
            meta["alias"],
            _parse_owner(meta["owner"]),
            layout,
            tuple(meta["key"]),
            frozenset(entry.get("aliases", {})),
        )
    except (KeyError, TypeError, ValueError):
        return None


def same_meta(one: Generation, other: Generation) -> bool:
    """Return True if both record the same table with the same fields."""
    return json.dumps(one.meta(), sort_keys=True) == json.dumps(other.meta(), sort_keys=True)


def _owner_json(owner: TableOwner) -> dict[str, Any]:
    source = [owner.source_name.schema, owner.source_name.name]
    return {"pipeline": owner.pipeline, "sourceId": owner.source_id, "tableId": int(owner.table), "source": source}


def _parse_owner(data: Mapping[str, Any]) -> TableOwner:
    return TableOwner(data["pipeline"], data["sourceId"], TableId(data["tableId"]), QualifiedTable(*data["source"]))
