"""The bases of the sections of ``spec.destination`` and ``spec.store``: the settings of one destination or store."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from levada.spec.model import CHANGE, Change, Model, setting
from levada.spec.source import SecretRef


class Section(Model):
    """The settings of a destination or a store. A subclass adds fields, and describes the Secret's keys."""

    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret that is mounted, one file per key. A changed key needs no restart. Unset: no Secret is mounted."""


class DestinationSettings(Section):
    """The settings of a destination. A destination with several modes adds the field ``mode``.

    ``spark`` is that of the destination's capabilities. The operator reads it here, because it cannot import the class.
    Without it, settings of Spark are refused, and the driver's pod is small. ``keeps_deleted`` is that of the
    capabilities too. Without it, ``deletes`` other than Apply is refused.
    """

    spark: ClassVar[bool] = False
    keeps_deleted: ClassVar[bool] = False


class DestinationTableSettings(Model):
    """The settings of one table for a destination. Every field is Hot, because the destination changes the table."""


class PluginTableSettings(DestinationTableSettings):
    """The settings of one table for a destination from another Python package."""

    options: dict[str, Any] = Field(
        {},
        json_schema_extra={CHANGE: Change.HOT.value, "x-kubernetes-preserve-unknown-fields": True},
    )
    """The destination's own settings of a table, described in its documentation."""


class PluginSection(Section):
    """The settings of a destination or a store from another Python package."""

    type: str = setting(Change.IMMUTABLE, min_length=1, max_length=253)
    """The name of its entry point."""
    options: dict[str, Any] = Field(
        {},
        json_schema_extra={CHANGE: Change.RESTART.value, "x-kubernetes-preserve-unknown-fields": True},
    )
    """Its own settings, described in its documentation. Secrets belong into credentialsSecretRef."""
