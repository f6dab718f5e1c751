"""A pipeline whose publication a test changes by SQL."""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString

from tests.rigs.pipeline import Rig, table

from levada.runtime.config import PublicationConfig
from levada.status import ErrorProgress


class Published(Rig):
    """Statements call the publication ``{p}``."""

    @property
    def publication(self) -> str:
        return self.config.publication.name

    def sql(self, *statements: LiteralString) -> None:
        """Run statements that call the publication ``{p}``."""
        with self.db.connect() as connection:
            for statement in statements:
                connection.execute(statement.replace("{p}", self.publication).encode())

    def external(self, name: str = "") -> None:
        """Set the publication to one that Levada does not manage."""
        self.config = replace(self.config, publication=PublicationConfig(name or self.publication, managed=False))

    def parked(self, name: str) -> ErrorProgress:
        """Wait until the table is parked. Return its error."""
        seen = self.wait(lambda p: any(t.table.name == name and t.phase == "Errored" for t in p.tables))
        error = table(seen, name).error
        assert error is not None
        return error

    def code(self, name: str, code: str) -> None:
        """Wait until the table is parked for good with this code."""
        error = self.parked(name)
        assert (error.code, error.retry_policy) == (code, "NoRetry")
        assert "levada resync MANIFEST public." + name in error.solution
