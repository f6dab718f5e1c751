"""The file in a pipeline's folder of the staging area that names the Pipeline whose segments these are."""

from __future__ import annotations

import json
from typing import Final

from levada.errors import NeedsOperator
from levada.segments.staging import Staging
from levada.values import PipelineOwner

OWNER_FILE: Final = "owner"


def owner_file(pipeline: str) -> str:
    """Return the path of the file."""
    return f"{pipeline}/{OWNER_FILE}"


def read_owner(staging: Staging, pipeline: str) -> PipelineOwner | None:
    """Return the owner of the pipeline's folder, None if there is none.

    Raise NeedsOperator ``owner_unreadable`` for a file of other content.
    """
    path = owner_file(pipeline)
    try:
        raw = json.loads(staging.read(path))
        return PipelineOwner(str(raw["uid"]), str(raw["name"]))
    except NeedsOperator as error:
        if error.code != "staging_file_missing":
            raise
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NeedsOperator(
            "owner_unreadable",
            f"staging: {path} does not name the owner of the folder",
            hint=f"if no other Pipeline stages there, remove {path} from {staging.uri}",
        ) from error


def claim_folder(staging: Staging, pipeline: str, owner: PipelineOwner) -> PipelineOwner:
    """Make the Pipeline the owner of its folder unless there is one. Return the owner.

    On an object store two first starts within one request could both be the owner.
    """
    staging.create(owner_file(pipeline), _content(owner))
    return read_owner(staging, pipeline) or owner


def replace_owner(staging: Staging, pipeline: str, owner: PipelineOwner | None) -> None:
    """Make another Pipeline the owner of the folder. None: release it."""
    if owner is None:
        staging.remove(owner_file(pipeline))
    else:
        staging.publish(owner_file(pipeline), _content(owner), naming=())


def _content(owner: PipelineOwner) -> bytes:
    return json.dumps({"uid": owner.uid, "name": owner.name}).encode()
