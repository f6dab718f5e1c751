"""The staging area, opened with the settings of its object store."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from levada import codes
from levada.errors import LevadaError, Transient
from levada.runtime.config import StagingConfig
from levada.segments.owner_file import OWNER_FILE
from levada.segments.staging import Staging

_log = logging.getLogger(__name__)

_S3: Final = ("s3://", "s3a://")


def open_staging(config: StagingConfig) -> Staging:
    """Return the staging area.

    Raise NeedsOperator ``staging_unusable`` if no file system supports the URI.
    """
    has_properties = config.uri.startswith(_S3) and "?" not in config.uri
    opened = Staging.open(
        config.uri, durable=config.durable, properties=config.object_store() if has_properties else None
    )
    return replace(opened, limits=config.limits)


def start_makes_room(error: LevadaError, staging: Staging, pipeline: str) -> bool:
    """Return True if ``error`` is that the staging area is full, and the pipeline has files in it.

    A start removes files that no segment names, and applying the segments frees the others. Without that start the
    staging area would stay full.
    """
    return error.code == codes.STAGING_FULL and bool(staging.list(pipeline).keys() - {OWNER_FILE})


def probe_staging(staging: Staging, pipeline: str) -> None:
    """Raise Transient if the staging area cannot be used, unless it is full and a start makes room in it."""
    try:
        staging.probe()
    except Transient as error:
        if not start_makes_room(error, staging, pipeline):
            raise
        _log.warning("capture waits until staged segments are applied: %s", error)
