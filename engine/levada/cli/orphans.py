"""`levada orphans`: list what deleted Pipelines may have left at their sources, and take entries off the list."""

from __future__ import annotations

from collections.abc import Sequence

from levada.cli.exit_codes import Exit
from levada.cli.output import Output, console, write_json
from levada.errors import NeedsOperator
from levada.status.orphans import Orphan, list_name, read_orphans
from levada.stores.config_map import config_maps


def orphans(namespace: str, lease: str, forget: Sequence[str], output: Output) -> Exit:
    """List the entries, or with UIDs in ``forget`` take these off. Within a pod the namespace is the pod's.

    Raise NeedsOperator ``orphan_unknown`` for a UID that is not listed, and before that take nothing off.
    """
    from levada.stores.config_map_client import Conflict

    maps, name = config_maps(namespace), list_name(lease)
    try:
        seen = maps.read(name)
        found = list(read_orphans(seen.data))
        while forget:
            _check_listed(found, forget, f"{maps.namespace}/{name}")
            found = [orphan for orphan in found if orphan.uid not in forget]
            kept = {orphan.key for orphan in found}
            try:
                maps.patch(name, seen, {key: text for key, text in seen.data.items() if key in kept})
                break
            except Conflict:
                # The operator has added an entry meanwhile.
                seen = maps.read(name)
                found = list(read_orphans(seen.data))
    finally:
        maps.close()
    if output is Output.JSON:
        write_json({"orphans": [orphan.to_json() for orphan in found]})
        return Exit.OK
    out = console()
    for line in lines(found):
        # Statements are copied from the terminal, so they have no line breaks of its width.
        out.print(line, markup=False, soft_wrap=True)
    return Exit.OK


def lines(found: Sequence[Orphan]) -> list[str]:
    """Return the list for people, with the command that takes an entry off."""
    if not found:
        return ["nothing is listed: no clean-up of a deleted Pipeline was given up"]
    shown = []
    for orphan in found:
        shown += [
            f"{orphan.namespace}/{orphan.pipeline}, since {orphan.since}, UID {orphan.uid}",
            f"  {orphan.message}",
        ]
    return [*shown, "", f"Once it is removed, take it off the list: levada orphans --forget {found[0].uid}"]


def _check_listed(found: Sequence[Orphan], forget: Sequence[str], where: str) -> None:
    known = {orphan.uid for orphan in found}
    if missing := [uid for uid in forget if uid not in known]:
        raise NeedsOperator(
            "orphan_unknown",
            f"the list in ConfigMap {where} has no UID {missing[0]}",
            hint="levada orphans prints the UIDs",
        )
