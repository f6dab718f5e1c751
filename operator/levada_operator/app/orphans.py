"""``python -m levada_operator orphans``: the list of abandoned clean-ups, within the operator's pod.

An image of the operator alone has no command line of Levada. This command needs nothing that the operator does not
have: its settings, its account and its client.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from levada.errors import LevadaError
from levada.status.orphans import Orphan, list_name, orphan_lines, read_orphans, without
from levada_operator.act.elector import LeaseKey
from levada_operator.app.config import read_config
from levada_operator.app.credentials import read_credentials
from levada_operator.kube.client import ApiServer
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import FIELD_MANAGER, MANAGED_BY

COMMAND: Final = "python -m levada_operator orphans"
_CONFLICT: Final = 409
_FAILED: Final = 1


def show_orphans(words: Sequence[str]) -> int:
    """Print the list, without the entries that ``words`` take off. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="List what deleted Pipelines may have left at their sources, with the SQL."
    )
    parser.add_argument(
        "--forget", action="append", default=[], metavar="UID", help="take an entry off the list; can be repeated"
    )
    forget = parser.parse_args(words).forget
    try:
        lease, credentials = read_config(os.environ).lease, read_credentials()
        server = ApiServer(credentials.server, credentials.context, credentials.headers)
        found = left_after(server, lease, forget)
    except (LevadaError, RequestFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    sys.stdout.write("\n".join(orphan_lines(found, COMMAND)) + "\n")
    return 0


def left_after(cluster: Cluster, lease: LeaseKey, forget: Sequence[str]) -> list[Orphan]:
    """Take the entries with these UIDs off the list, and return the others.

    Raise NeedsOperator ``orphan_unknown`` for a UID that is not listed, and before that take nothing off.
    """
    name = list_name(lease.name)
    while True:
        body = cluster.get("ConfigMap", lease.namespace, name) or {}
        found = list(read_orphans(body.get("data") or {}))
        if not forget:
            return found
        found = without(found, forget, f"{lease.namespace}/{name}", COMMAND)
        metadata = {"name": name, "namespace": lease.namespace, "labels": {MANAGED_BY: FIELD_MANAGER}}
        metadata["resourceVersion"] = body["metadata"]["resourceVersion"]
        data = {orphan.key: orphan.text for orphan in found}
        try:
            cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        except RequestFailed as error:
            # The operator has added an entry meanwhile.
            if error.status != _CONFLICT:
                raise
        else:
            return found
