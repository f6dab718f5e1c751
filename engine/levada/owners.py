"""The refusal of a Pipeline that does not own what it would use, and the way to hand it over."""

from __future__ import annotations

from typing import Final

from levada.errors import NeedsOperator
from levada.values import PipelineOwner

_COPY_ALL: Final = ". If it is this one, whose state was lost, then also: levada resync MANIFEST --all"


def not_the_owner(place: str, theirs: PipelineOwner, mine: PipelineOwner) -> NeedsOperator:
    """Return the error of a Pipeline that meets another one's property at a place.

    A Pipeline of another namespace is named by its UID alone, because the message is read in the namespace of this one.
    """
    return NeedsOperator(
        "not_the_owner",
        f"{place} belongs to {_described(theirs, mine)}, and this is {mine}",
        hint="give this one a name, slot, publication and staging area of its own. If the other one is gone, or hands"
        f" over: {take_over_command(theirs, mine)}{_COPY_ALL if mine.new else ''}",
    )


def _described(theirs: PipelineOwner, mine: PipelineOwner) -> str:
    if mine.local or theirs.local or theirs.namespace == mine.namespace:
        return str(theirs)
    return f"a Pipeline of another namespace (UID {theirs.uid})"


def take_over_command(theirs: PipelineOwner, mine: PipelineOwner) -> str:
    """Return the command by which one Pipeline takes over what another one owned."""
    if mine.local:
        return f"levada takeover MANIFEST --from {theirs.uid}"
    namespace, _, name = mine.name.rpartition("/")
    return (
        f"kubectl -n {namespace} annotate --overwrite pipelines.levada.dev {name}"
        f" levada.dev/take-over-from={theirs.uid}"
    )
