"""The comments at the source that give masks to columns, as a part of the configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from levada.errors import NeedsOperator
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.mask_comments import read_mask_comments
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.schema.mask_comments import MaskComments
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)


def with_comments(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration with the comments that the source has now. Raise the errors of the connection."""
    return replace(config, mask_comments=comments_now(config))


def comments_now(config: PipelineConfig) -> Mapping[QualifiedTable, MaskComments]:
    """Read the comments of the selected tables. Raise the errors of the connection."""
    with SESSIONS.session(config.source, "comments") as connection:
        found = read_mask_comments(connection)
    return {name: its for name, its in found.items() if config.is_selected(name)}


def adopt_comments(config_ref: ConfigRef, comments: Mapping[QualifiedTable, MaskComments]) -> None:
    """Let the comments count from now on. The tables whose masks change are then copied again, as after a change of
    the manifest.
    """
    config = config_ref.current
    if comments == config.mask_comments:
        return
    before = config.mask_comments
    changed = [name for name in {**before, **comments} if before.get(name) != comments.get(name)]
    _log.info("comments that mask columns have changed: %s", ", ".join(map(str, sorted(changed))))
    config_ref.replace(replace(config, mask_comments=comments))


def comment_problems(config: PipelineConfig) -> Iterator[NeedsOperator]:
    """Yield the error of each table with a comment that says no mask. Its copy raises the same."""
    for name in config.mask_comments:
        if (problem := config.comment_problem(name)) is not None:
            yield problem
