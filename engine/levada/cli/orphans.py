"""`levada orphans`: list what deleted Pipelines may have left at their sources, and take entries off the list."""

from __future__ import annotations

from collections.abc import Sequence

from levada.cli.exit_codes import Exit
from levada.cli.output import Output, console, write_json
from levada.status.orphans import list_name, orphan_lines, read_orphans, without
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
            found = without(found, forget, f"{maps.namespace}/{name}")
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
    for line in orphan_lines(found):
        # Statements are copied from the terminal, so they have no line breaks of its width.
        out.print(line, markup=False, soft_wrap=True)
    return Exit.OK
