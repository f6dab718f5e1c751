"""The place of the destination, which stays the same for the lifetime of a pipeline's state.

With another one, no table would be where the store's positions say that it is.
"""

from __future__ import annotations

import json
from typing import Final

from levada.errors import InvalidManifest
from levada.runtime.config import PipelineConfig
from levada.stores.interface import StateStore

_SUBJECT: Final = "destination"


def require_same_place(config: PipelineConfig, store: StateStore) -> None:
    """Raise InvalidManifest ``immutable_field_changed`` if the state belongs to another place than the manifest's."""
    kept = json.loads(store.get_fingerprint(_SUBJECT) or "{}")
    now = config.destination_place
    for path in sorted(kept.keys() & now.keys()):
        # A folder's name may end with a slash.
        if kept[path].rstrip("/") != now[path].rstrip("/"):
            raise InvalidManifest(
                "immutable_field_changed",
                f"{path} cannot be changed from {kept[path] or '(empty)'} to {now[path] or '(empty)'}: the state of"
                f" pipeline {config.name} belongs to the tables that are there",
                hint="set the field back, or give the pipeline another metadata.name, which copies every table",
            )


def save_place(config: PipelineConfig, store: StateStore) -> None:
    """Save the place of the manifest's destination with the state."""
    text = json.dumps(dict(config.destination_place))
    if config.destination_place and store.get_fingerprint(_SUBJECT) != text:
        store.store_fingerprint(_SUBJECT, text)
