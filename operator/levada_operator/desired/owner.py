"""Whose objects these are: what every builder is told, and the metadata that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from levada.spec import Manifests, PipelineSpec
from levada_operator.names import API_VERSION, driver_name, executor_name, labels
from levada_operator.observe.objects import OperatorDefaults
from levada_operator.observe.observed import Observed


@dataclass(frozen=True, slots=True)
class Owner:
    """An accepted manifest, and the Pipeline object that it is of."""

    manifests: Manifests
    namespace: str
    uid: str
    defaults: OperatorDefaults
    take_over_from: str = ""
    """The UID of the owner that the Pipeline takes over from. Empty: of none."""

    @property
    def name(self) -> str:
        """The Pipeline's name."""
        return self.manifests.pipeline.metadata.name

    @property
    def spec(self) -> PipelineSpec:
        """The Pipeline's accepted spec."""
        return self.manifests.pipeline.spec

    @property
    def image(self) -> str:
        """The image of every pod of the Pipeline."""
        return self.spec.driver.image or self.defaults.image

    @property
    def account(self) -> str:
        """The account of the driver and of its Jobs."""
        return self.spec.driver.service_account.name or driver_name(self.name)

    @property
    def executor_account(self) -> str:
        """The account of the executors. Their pods never get its token for the API server."""
        return self.spec.driver.service_account.name or executor_name(self.name)


def build_owner(observed: Observed, manifests: Manifests) -> Owner:
    """Return the owner of a Pipeline's objects under that accepted manifest."""
    pipeline = observed.pipeline
    return Owner(manifests, pipeline.namespace, pipeline.uid, observed.defaults, pipeline.take_over_from)


def build_object(
    owner: Owner, kind: str, api_version: str, name: str, role: str, content: dict[str, Any], *, owned: bool = True
) -> dict[str, Any]:
    """Return an object of the Pipeline with that content; without ``owned`` it outlives the Pipeline."""
    metadata: dict[str, Any] = {"name": name, "namespace": owner.namespace, "labels": labels(owner.name, role)}
    if owned:
        metadata["ownerReferences"] = [build_owner_reference(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def build_owner_reference(owner: Owner) -> dict[str, Any]:
    """Return the reference by which Kubernetes removes an object with its Pipeline."""
    # Not a controller's reference, and it blocks nothing: the finalizer orders what must be in order.
    return {"apiVersion": API_VERSION, "kind": "Pipeline", "name": owner.name, "uid": owner.uid}
