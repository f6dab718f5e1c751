"""The replication slots that manifests name, so that two Pipelines with one slot are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.spec import default_object_name
from levada_operator.observe.mappings import mapping_in
from levada_operator.observe.objects import PipelineKey


class NamedSlots:
    """The Pipelines by the slots of their specs. Not thread-safe."""

    def __init__(self) -> None:
        self._pipelines: dict[tuple[str, ...], set[PipelineKey]] = {}

    def add(self, pipeline: PipelineKey, spec: Mapping[str, Any]) -> None:
        """Record the slot of a Pipeline."""
        self._pipelines.setdefault(_slot_of(pipeline, spec), set()).add(pipeline)

    def remove(self, pipeline: PipelineKey, spec: Mapping[str, Any]) -> None:
        """Forget the slot of a Pipeline."""
        slot = _slot_of(pipeline, spec)
        same = self._pipelines.get(slot, set())
        same.discard(pipeline)
        if not same:
            self._pipelines.pop(slot, None)

    def sharing(self, pipeline: PipelineKey, spec: Mapping[str, Any]) -> set[PipelineKey]:
        """Return the other Pipelines of a slot."""
        return self._pipelines.get(_slot_of(pipeline, spec), set()) - {pipeline}


def _slot_of(pipeline: PipelineKey, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host, port, database and name that identify a slot. The spec may be invalid."""
    source = mapping_in(spec, "source")
    slot = mapping_in(source, "slot").get("name") or default_object_name(pipeline.name, pipeline.namespace)
    host = _dns_name(str(source.get("host")), pipeline.namespace)
    return (host, str(source.get("port", 5432)), str(source.get("database")), str(slot))


def _dns_name(host: str, namespace: str) -> str:
    """Return a host's name as ``service.namespace``. A name without a dot is a Service in the Pipeline's namespace."""
    name = host.lower().removesuffix(".").removesuffix(".cluster.local").removesuffix(".svc")
    return name if "." in name or ":" in name else f"{name}.{namespace}"
