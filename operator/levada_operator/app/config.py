"""The operator's settings, read from environment variables. The chart sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from levada.spec import format_bytes, parse_bytes
from levada_operator.act.elector import LeaseKey
from levada_operator.decide.election import LeaseTimings, lease_timings
from levada_operator.observe.objects import OperatorDefaults, StagingDefaults, UpdatePolicy, VolumeUse


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's settings.

    ``lease`` is the Lease of the leader election: of all processes with the same one, only the leader writes.
    ``driver_token`` is the file with the token that drivers with driver.tokenSecretRef require. ``namespaces`` are
    those to serve, or empty for all. ``address`` and ``port`` serve probes and metrics. ``sweep_s`` is the pause
    between sweeps, in seconds.
    """

    defaults: OperatorDefaults
    lease: LeaseKey
    timings: LeaseTimings
    driver_token: Path | None = None
    namespaces: tuple[str, ...] = ()
    address: str = "0.0.0.0"
    port: int = 8081
    sweep_s: float = 5.0


def read_config(environment: Mapping[str, str]) -> Config:
    """Read the settings. Raise ValueError for an invalid one."""
    namespaces = tuple(n for n in environment.get("LEVADA_NAMESPACES", "").replace(" ", "").split(",") if n)
    token = environment.get("LEVADA_DRIVER_TOKEN_FILE")
    return Config(
        OperatorDefaults(
            image=environment.get("LEVADA_IMAGE") or f"levada:{version('levada')}",
            operator_namespace=environment.get("POD_NAMESPACE", ""),
            metrics_namespace=environment.get("LEVADA_METRICS_NAMESPACE", ""),
            has_driver_token=bool(token),
            updates=UpdatePolicy(
                max_concurrent=int(environment.get("LEVADA_UPDATES", "1")),
                deadline=timedelta(seconds=int(environment.get("LEVADA_UPDATE_SECONDS", "600"))),
            ),
            staging=StagingDefaults(
                VolumeUse(environment.get("LEVADA_STAGING_VOLUMES", VolumeUse.DETECT)),
                format_bytes(parse_bytes(environment.get("LEVADA_STAGING_SIZE", "20Gi"))),
            ),
            assigned_user=environment.get("LEVADA_ASSIGNED_USER") == "true",
        ),
        lease=LeaseKey(
            environment.get("POD_NAMESPACE") or next(iter(namespaces), "default"),
            environment.get("LEVADA_LEASE") or "levada-operator",
        ),
        timings=lease_timings(int(environment.get("LEVADA_LEASE_SECONDS", "15"))),
        driver_token=Path(token) if token else None,
        namespaces=namespaces,
        address=environment.get("LEVADA_ADDRESS", "0.0.0.0"),
        port=int(environment.get("LEVADA_PORT", "8081")),
        sweep_s=float(environment.get("LEVADA_SWEEP_SECONDS", "5")),
    )
