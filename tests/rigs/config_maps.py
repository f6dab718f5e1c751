"""ConfigMaps in this process's memory, in place of those of a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from levada.stores.config_map_client import Conflict, Version


class ConfigMapsInMemory:
    """The interface of `levada.stores.config_map_client.ConfigMaps` over a dictionary."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.content: dict[str, Version] = {}
        self._numbers = itertools.count(1)

    def read(self, name: str) -> Version:
        """Return the content."""
        return self.content.get(name, Version("", {}))

    def patch(self, name: str, seen: Version, data: Mapping[str, str]) -> Version:
        """Replace the content. Raise Conflict if it is not as seen."""
        if name not in self.content or self.content[name].number != seen.number:
            raise Conflict
        return self._put(name, data)

    def create(self, name: str, data: Mapping[str, str], labels: Mapping[str, str]) -> Version:
        """Create the ConfigMap. Raise Conflict if it exists."""
        assert labels
        if name in self.content:
            raise Conflict
        return self._put(name, data)

    def close(self) -> None:
        """Keep the content."""

    def _put(self, name: str, data: Mapping[str, str]) -> Version:
        self.content[name] = Version(str(next(self._numbers)), dict(data))
        return self.content[name]
