"""The owner of the built objects, and the metadata that they have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from levada.spec import Manifests, PipelineSpec
from levada.spec.running import Executor
from levada_operator.names import API_VERSION, driver_name, executor_name, labels
from levada_operator.observe.objects import OperatorDefaults
from levada_operator.observe.observed import Observed


@dataclass(frozen=True, slots=True)
class Owner:
    """An accepted manifest, with the identity of its Pipeline object and the operator's defaults."""

    manifests: Manifests
    namespace: str
    uid: str
    defaults: OperatorDefaults
    take_over_from: str = ""
    """The UID of the Pipeline to take over from, or empty."""
    approves: str = ""
    """The approval that the Pipeline has, or empty."""

    @property
    def name(self) -> str:
        """The Pipeline's name."""
        return self.manifests.pipeline.metadata.name

    @property
    def spec(self) -> PipelineSpec:
        """The Pipeline's accepted spec."""
        return self.manifests.pipeline.spec

    @property
    def executor(self) -> Executor:
        """The settings of the executors of driver.mode Cluster."""
        return self.spec.executor or Executor()

    @property
    def image(self) -> str:
        """The image of every pod of the Pipeline: that of the spec, else the operator's default."""
        return self.spec.driver.image or self.defaults.image

    @property
    def account(self) -> str:
        """The ServiceAccount of the driver and its Jobs."""
        return self.spec.driver.service_account.name or driver_name(self.name)

    @property
    def executor_account(self) -> str:
        """The ServiceAccount of the executors. Its token for the API server is never mounted."""
        return self.spec.driver.service_account.name or executor_name(self.name)


def build_owner(observed: Observed, manifests: Manifests) -> Owner:
    """Return the owner for a Pipeline and an accepted manifest."""
    pipeline = observed.pipeline
    return Owner(
        manifests,
        pipeline.namespace,
        pipeline.uid,
        observed.defaults,
        pipeline.take_over_from,
        pipeline.approves,
    )


def build_object(
    owner: Owner, kind: str, api_version: str, name: str, role: str, content: dict[str, Any], *, owned: bool = True
) -> dict[str, Any]:
    """Return an object of the Pipeline with that content. With ``owned`` False it outlives the Pipeline."""
    metadata: dict[str, Any] = {"name": name, "namespace": owner.namespace, "labels": labels(owner.name, role)}
    if owned:
        metadata["ownerReferences"] = [build_owner_reference(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def build_owner_reference(owner: Owner) -> dict[str, Any]:
    """Return the owner reference by which Kubernetes deletes an object with its Pipeline."""
    # Neither controller nor blockOwnerDeletion is set: the finalizer ensures the order of deletion.
    return {"apiVersion": API_VERSION, "kind": "Pipeline", "name": owner.name, "uid": owner.uid}
