"""The image and the pod template with which a driver was Ready last, for Jobs that must not fail with newer ones.

The newest ones may name an image that does not exist, or a node that does not. The record is that of the rollback.
"""

from __future__ import annotations

from dataclasses import replace

from levada.spec import Manifests
from levada_operator.decide.rollback import read_record
from levada_operator.desired.manifest import recorded_pipeline
from levada_operator.desired.owner import Owner
from levada_operator.names import driver_name
from levada_operator.observe.observed import Observed


def as_last_run(owner: Owner, observed: Observed) -> Owner:
    """Return the owner with the image and the pod template that were Ready last, as far as they are recorded."""
    live = observed.owned.get("StatefulSet", driver_name(owner.name))
    if live is None:
        return owner
    record, driver = read_record(live), owner.spec.driver
    ready = recorded_pipeline(record.ready_spec)
    template = driver.pod_template if ready is None else ready.spec.driver.pod_template
    driver = driver.model_copy(update={"image": record.ready_image or driver.image, "pod_template": template})
    pipeline = owner.manifests.pipeline
    spec = pipeline.spec.model_copy(update={"driver": driver})
    changed = Manifests(pipeline.model_copy(update={"spec": spec}), owner.manifests.table_syncs)
    return replace(owner, manifests=changed)
