"""The operator's settings, read from environment variables. The chart sets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

from levada.errors import NeedsOperator
from levada.spec import format_bytes, parse_bytes
from levada_operator.act.elector import LeaseKey
from levada_operator.decide.election import LeaseTimings, lease_timings
from levada_operator.observe.objects import OperatorDefaults, StagingDefaults, UpdatePolicy, VolumeUse

EACH_ADDRESS: Final = "::"
"""Each address of the pod, of IPv6 and of IPv4. In some clusters a pod has one of IPv6 alone."""


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's settings.

    ``lease`` is the Lease of the leader election: of all processes with the same one, only the leader writes.
    ``driver_tokens`` is a folder with the token of each namespace whose drivers have a driver.tokenSecretRef.
    ``namespaces`` are those to serve, or empty for all. ``address`` and ``port`` serve probes and metrics. ``sweep_s``
    is the pause between sweeps, in seconds.
    """

    defaults: OperatorDefaults
    lease: LeaseKey
    timings: LeaseTimings
    driver_tokens: Path | None = None
    namespaces: tuple[str, ...] = ()
    address: str = EACH_ADDRESS
    port: int = 8081
    sweep_s: float = 5.0


_T = TypeVar("_T")


def _read(environment: Mapping[str, str], name: str, default: str, parse: Callable[[str], _T]) -> _T:
    value = environment.get(name, default)
    try:
        return parse(value)
    except ValueError as error:
        raise NeedsOperator(
            "setting_invalid",
            f"the environment variable {name} is {value!r}: {error}",
            hint=f"correct it. Its default is {default}",
        ) from error


def read_config(environment: Mapping[str, str]) -> Config:
    """Read the settings. Raise NeedsOperator ``setting_invalid`` for an invalid one."""
    namespaces = tuple(n for n in environment.get("LEVADA_NAMESPACES", "").replace(" ", "").split(",") if n)
    token = environment.get("LEVADA_DRIVER_TOKENS")
    lease = LeaseKey(
        environment.get("POD_NAMESPACE") or next(iter(namespaces), "default"),
        environment.get("LEVADA_LEASE") or "levada-operator",
    )
    return Config(
        OperatorDefaults(
            image=environment.get("LEVADA_IMAGE") or f"levada:{version('levada')}",
            operator_namespace=environment.get("POD_NAMESPACE", ""),
            metrics_namespace=environment.get("LEVADA_METRICS_NAMESPACE", ""),
            has_driver_token=bool(token),
            identity=lease.text,
            updates=UpdatePolicy(
                max_concurrent=_read(environment, "LEVADA_UPDATES", "1", int),
                deadline=timedelta(seconds=_read(environment, "LEVADA_UPDATE_SECONDS", "600", int)),
            ),
            staging=StagingDefaults(
                _read(environment, "LEVADA_STAGING_VOLUMES", VolumeUse.DETECT, VolumeUse),
                _read(environment, "LEVADA_STAGING_SIZE", "20Gi", lambda text: format_bytes(parse_bytes(text))),
            ),
            assigned_user=environment.get("LEVADA_ASSIGNED_USER") == "true",
        ),
        lease=lease,
        timings=_read(environment, "LEVADA_LEASE_SECONDS", "15", lambda text: lease_timings(int(text))),
        driver_tokens=Path(token) if token else None,
        namespaces=namespaces,
        address=environment.get("LEVADA_ADDRESS", EACH_ADDRESS),
        port=_read(environment, "LEVADA_PORT", "8081", int),
        sweep_s=_read(environment, "LEVADA_SWEEP_SECONDS", "5", float),
    )
