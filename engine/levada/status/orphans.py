"""The list of what deleted Pipelines may have left at their sources: one entry of a ConfigMap for each.

The operator adds an entry when it gives up a clean-up. It connects to no database, so it cannot see whether a slot is
gone. An entry stays until a person takes it off, or until another Pipeline has taken over what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from levada.errors import NeedsOperator
from levada.printable import printable

OPERATOR: Final = "levada-operator"
"""The default name of the operator's Lease, after which the list is named."""


def list_name(lease: str = OPERATOR) -> str:
    """Return the name of the ConfigMap with the list. ``lease`` is the operator's Lease in the same namespace."""
    return f"{lease}-abandoned"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An entry: a deleted Pipeline. ``since`` is a time of RFC 3339. ``message`` has the SQL that removes what is left.

    Two Pipelines of the same name, one after the other, differ in their UIDs.
    """

    namespace: str
    pipeline: str
    uid: str
    since: str
    message: str

    @property
    def key(self) -> str:
        """The key of the entry. Neither a namespace nor the name of a Pipeline has a dot."""
        return f"{self.namespace}.{self.pipeline}.{self.uid}"

    @property
    def text(self) -> str:
        """The value of the entry."""
        return f"{self.since} {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry for programs."""
        return {
            "namespace": self.namespace,
            "pipeline": self.pipeline,
            "uid": self.uid,
            "since": self.since,
            "message": self.message,
        }


def read_orphans(data: Mapping[str, str]) -> Iterator[Orphan]:
    """Yield the entries of the ConfigMap, the oldest first. A person may have written one by hand."""
    found = []
    for key, text in data.items():
        namespace, _, rest = key.partition(".")
        pipeline, _, uid = rest.partition(".")
        since, _, message = text.partition(" ")
        found.append(Orphan(namespace, pipeline, uid, since, message))
    yield from sorted(found, key=lambda orphan: (orphan.since, orphan.key))


def orphan_lines(found: Sequence[Orphan], command: str = "levada orphans") -> list[str]:
    """Return the list for people, with the command that takes an entry off.

    A message has names that a tenant chose, so no control character of it reaches the terminal.
    """
    if not found:
        return ["nothing is listed: no clean-up of a deleted Pipeline was given up"]
    shown = []
    for orphan in found:
        shown += [
            f"{orphan.namespace}/{orphan.pipeline}, since {orphan.since}, UID {orphan.uid}",
            f"  {printable(orphan.message)}",
        ]
    return [*shown, "", f"Once it is removed, take it off the list: {command} --forget {found[0].uid}"]


def without(
    found: Sequence[Orphan], forget: Sequence[str], where: str, command: str = "levada orphans"
) -> list[Orphan]:
    """Return the entries whose UIDs are not in ``forget``. ``where`` is the ConfigMap.

    Raise NeedsOperator ``orphan_unknown`` for a UID that is not listed.
    """
    known = {orphan.uid for orphan in found}
    if missing := [uid for uid in forget if uid not in known]:
        raise NeedsOperator(
            "orphan_unknown",
            f"the list in ConfigMap {where} has no UID {missing[0]}",
            hint=f"{command} prints the UIDs",
        )
    return [orphan for orphan in found if orphan.uid not in forget]
