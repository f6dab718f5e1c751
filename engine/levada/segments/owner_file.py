"""The owner file in a pipeline's staging folder. It names the Pipeline that owns the segments."""

from __future__ import annotations

import json
from typing import Final

from levada import codes
from levada.errors import NeedsOperator
from levada.segments.staging import Staging
from levada.values import PipelineOwner

OWNER_FILE: Final = "owner"


def owner_file(pipeline: str) -> str:
    """Return the path of the owner file, relative to the staging area."""
    return f"{pipeline}/{OWNER_FILE}"


def read_owner(staging: Staging, pipeline: str) -> PipelineOwner | None:
    """Return the owner of the pipeline's folder, or None if there is none.

    Raise NeedsOperator ``owner_unreadable`` if the content cannot be parsed.
    """
    path = owner_file(pipeline)
    try:
        raw = json.loads(staging.read(path))
        return PipelineOwner(str(raw["uid"]), str(raw["name"]))
    except NeedsOperator as error:
        if error.code != codes.STAGING_FILE_MISSING:
            raise
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NeedsOperator(
            "owner_unreadable",
            f"staging: {path} does not name the owner of the folder",
            hint=f"if no other Pipeline uses the folder, remove {path} from {staging.uri}",
        ) from error


def claim_folder(staging: Staging, pipeline: str, owner: PipelineOwner) -> PipelineOwner:
    """Make the Pipeline the owner of its folder unless it has one. Return the owner.

    On an object store this is not atomic: two Pipelines that start for the first time at the same moment may both
    become the owner.
    """
    staging.create(owner_file(pipeline), _content(owner))
    return read_owner(staging, pipeline) or owner


def replace_owner(staging: Staging, pipeline: str, owner: PipelineOwner | None) -> None:
    """Make another Pipeline the owner of the folder, or remove the owner if ``owner`` is None."""
    if owner is None:
        staging.remove(owner_file(pipeline))
    else:
        staging.publish(owner_file(pipeline), _content(owner), naming=())


def _content(owner: PipelineOwner) -> bytes:
    return json.dumps({"uid": owner.uid, "name": owner.name}).encode()
