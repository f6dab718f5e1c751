"""The staging area, reached as the lake is."""

from __future__ import annotations

from typing import Final

from levada.destinations.iceberg.catalog_config import read_credentials
from levada.errors import LevadaError
from levada.runtime.config import StagingConfig
from levada.segments.owner_file import OWNER_FILE
from levada.segments.staging import Staging

_STORE_PROPERTIES: Final = ("s3.", "client.")
"""Of a catalog's properties, those of the object store."""


def open_staging(config: StagingConfig) -> Staging:
    """Return the staging area; raise NeedsOperator ``staging_unusable`` if no file system answers to its URI."""
    properties = dict(config.properties)
    if config.credentials is not None and config.credentials.is_dir():
        properties |= read_credentials(config.credentials)
    store = {key: value for key, value in properties.items() if key.startswith(_STORE_PROPERTIES)}
    return Staging.open(config.uri, durable=config.durable, properties=store)


def start_makes_room(error: LevadaError, staging: Staging, pipeline: str) -> bool:
    """Return True if the staging area is full, and holds files of the pipeline.

    A start removes those that no segment names, and frees the others as it applies them. Refusing that start would
    keep the staging area full.
    """
    return error.code == "staging_full" and bool(staging.list(pipeline).keys() - {OWNER_FILE})
