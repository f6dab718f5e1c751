"""A cluster in which one Pipeline streams, for tests of a change from its acceptance to its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.operator.cluster import PlanStore
from tests.operator.samples import at, merge, owned, owner, pipeline, pod_body, progress, running, table_sync, written

from levada_operator.decide.plan import Plan
from levada_operator.decide.reconcile import reconcile
from levada_operator.names import MANIFEST_DIGEST, TEMPLATE
from levada_operator.observe.objects import ObjectKey
from levada_operator.observe.pods import PodState, read_pod

DRIVER = ObjectKey("StatefulSet", "shop-driver")
MANIFEST = ObjectKey("ConfigMap", "shop-manifest")


@dataclass
class World:
    """A cluster in which a Pipeline streams. Its controllers and its driver take one step when they are asked to."""

    store: PlanStore = field(default_factory=lambda: PlanStore(running(), pipeline(), [table_sync()]))
    pod_image: str = ""
    pod_revision: str = ""
    digest: str = ""
    seconds: int = 0
    created: int = 0
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.owned = {k: merge(dict(b), {}) for k, b in owned(owner()).bodies.items()}
        self._controller()
        self.start()
        self.ready()
        self.reads()
        self.passes(2)

    def passes(self, times: int = 1, only: int | None = None) -> None:
        """Let the operator reconcile. The objects of each kind have a generation, as in the API server.

        With ``only`` the operator ends after so many of the plan's objects.
        """
        for _ in range(times):
            before, plan = self.store.owned.get(DRIVER, {}), reconcile(self.store.observe())
            self.plans.append(plan)
            self.store.carry_out(plan if only is None else replace(plan, apply=tuple(plan.apply[:only])))
            now = self.store.owned[DRIVER]
            if now is not before:
                last = before.get("metadata", {}).get("generation", 0)
                changed = now["spec"] != before.get("spec")
                now["metadata"]["generation"] = last + changed
                now["status"] = before.get("status", {})

    def edit(self, **changes: Any) -> None:
        """Change the Pipeline's spec."""
        generation = self.store.pipeline["metadata"]["generation"] + 1
        self.store.pipeline = merge(self.store.pipeline, {"spec": changes, "metadata": {"generation": generation}})

    def sees(self) -> None:
        """Let the StatefulSet's controller see the newest template."""
        self._controller()

    def end(self) -> None:
        """End the driver's pod."""
        self.store.observe(pods=())

    def start(self) -> None:
        """Start a pod of the newest template."""
        self.pod_image, self.pod_revision = self.image, self.annotations[TEMPLATE]
        self.seconds += 10
        self.created = self.seconds
        self._pod(conditions=[{"type": "Ready", "status": "False"}])

    def replaces(self) -> None:
        """Let the controller replace the pod by one of the newest template, and the operator see it."""
        self.sees()
        self.start()
        self.passes()

    def fails(self, **status: Any) -> None:
        """Let the pod fail with a status, without which it stays as it is."""
        self._pod(**(status or {"conditions": [{"type": "Ready", "status": "False"}]}))

    def ready(self) -> None:
        """Let the pod become ready."""
        self._pod()

    def reads(self) -> None:
        """Let the driver read its manifest, and the operator the driver's progress."""
        self.digest = self.store.owned[MANIFEST]["metadata"]["annotations"][MANIFEST_DIGEST]
        self.reports()

    def reports(self, **changes: Any) -> None:
        """Let the operator read the driver's progress."""
        report = progress(fetched=self.seconds, manifest={"digest": self.digest}, **changes)
        self.store.observe(report=report, now=at(self.seconds), moved_at=at(self.seconds))

    @property
    def runs_it(self) -> bool:
        """True if the driver runs the Pipeline's spec."""
        spec = self.store.pipeline["spec"]
        text = self.store.owned[MANIFEST]["data"]["pipeline.yaml"]
        wanted = spec.get("driver", {}).get("image", "levada:1"), f"freshnessSeconds: {spec.get('freshnessSeconds', 0)}"
        current = self.store.owned[MANIFEST]["metadata"]["annotations"][MANIFEST_DIGEST] == self.digest
        return self.pod_image == wanted[0] and ("freshnessSeconds" not in spec or wanted[1] in text) and current

    def later(self, seconds: int) -> None:
        """Let time pass."""
        self.seconds += seconds
        self.store.observe(now=at(self.seconds))

    @property
    def image(self) -> str:
        """The image of the driver's newest template."""
        return str(self.store.owned[DRIVER]["spec"]["template"]["spec"]["containers"][0]["image"])

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the driver's StatefulSet."""
        return dict(self.store.owned[DRIVER]["metadata"]["annotations"])

    def condition(self, of: str) -> dict[str, Any]:
        """Return a condition of the Pipeline."""
        return next(dict(c) for c in self.store.pipeline["status"]["conditions"] if c["type"] == of)

    def _controller(self) -> None:
        body = self.store.owned[DRIVER]
        body["metadata"].setdefault("generation", 1)
        body["status"] = {
            "observedGeneration": body["metadata"]["generation"],
            "updateRevision": self.annotations[TEMPLATE],
        }

    def _pod(self, **status: Any) -> None:
        self.store.observe(pods=(of_revision(self.pod_revision, self.created, **status),), now=at(self.seconds))


def of_revision(revision: str, created: float = -600, **status: Any) -> PodState:
    """Return the driver's pod of a revision."""
    metadata = {"labels": {"controller-revision-hash": revision}, "creationTimestamp": written(at(created))}
    return read_pod(merge(pod_body(**status), {"metadata": metadata}))
