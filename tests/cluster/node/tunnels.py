"""A way from this machine into a pod."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.node.place import Place


@contextmanager
def tunnel(place: Place) -> Iterator[str]:
    """Forward a port of this machine to the driver's, and yield the address."""
    command = ["kubectl", "-n", place.kubectl.namespace, "port-forward", "pod/shop-driver-0", ":8080"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            forward.terminate()
