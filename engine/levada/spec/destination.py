"""The manifest's ``destination``: exactly one kind of destination.

Each destination of Levada has a section, whose model is in the destination's package. See `own_sections`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from inspect import getdoc
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import create_model

from levada.spec.model import CHANGE, Change, Model, exactly_one, setting
from levada.spec.plugins import DESTINATIONS, own_sections
from levada.spec.section import DestinationSettings, PluginSection
from levada.values import TableMode


class CustomDestination(PluginSection, DestinationSettings):
    """A destination from another Python package."""

    # Only the engine imports its class, which may ask for Spark or not.
    spark: ClassVar[bool] = True
    keeps_deleted: ClassVar[bool] = True

    type: str = setting(Change.IMMUTABLE, min_length=1, max_length=253)
    """The destination's name in the entry-point group levada.destinations."""


class DestinationSection(Model):
    """The section of the one destination that is set."""

    @property
    def section(self) -> DestinationSettings:
        """The section's settings."""
        sections = (getattr(self, name) for name in type(self).model_fields)
        found: DestinationSettings = next(section for section in sections if section is not None)
        return found

    @property
    def type(self) -> str:
        """The destination's name in the entry-point group levada.destinations."""
        if isinstance(section := self.section, CustomDestination):
            return section.type
        return next(name for name in type(self).model_fields if getattr(self, name) is section)

    @property
    def spark(self) -> bool:
        """True if the destination uses Spark, or may use it."""
        return self.section.spark

    @property
    def in_one_transaction(self) -> bool:
        """True if one transaction at the destination has the changes of all tables."""
        return getattr(self.section, "ordering", None) == "Pipeline"

    @property
    def keeps_rows(self) -> bool:
        """True if the destination keeps rows that the source does not have any more, or may do so."""
        return self.section.keeps_deleted and not self.in_one_transaction

    @property
    def mode(self) -> TableMode:
        """The mode of tables whose TableSync does not set one."""
        return TableMode(getattr(self.section, "mode", TableMode.UPSERT))

    @property
    def copies_depend_on(self) -> str:
        """The values of the section's fields whose change copies every table again, except for the mode."""
        resynced = _values(self.section, Change.RESYNC, "")
        values = [v if isinstance(v, str) else json.dumps(v, default=str) for where, v in resynced if where != ".mode"]
        return values[0] if len(values) == 1 else json.dumps(values) if values else ""

    def section_of_copies(self, depended_on: str) -> DestinationSettings:
        """Return the section with the texts of former copies, which had ``depended_on`` as `copies_depend_on`.

        Other fields keep their values, because no table's name depends on them. All do if it has another format.
        """
        paths = [where for where, _ in _values(self.section, Change.RESYNC, "") if where != ".mode"]
        try:
            former = [depended_on] if len(paths) == 1 else json.loads(depended_on or "[]")
        except ValueError:
            return self.section
        if len(former) != len(paths):
            return self.section
        values = dict(zip(paths, former, strict=True))
        names = {f".{field.alias or name}": name for name, field in type(self.section).model_fields.items()}
        texts = {n: values[w] for w, n in names.items() if w in values and isinstance(getattr(self.section, n), str)}
        return self.section.model_copy(update=texts)

    @property
    def place(self) -> Mapping[str, str]:
        """The values of the fields that no change may alter, by their paths."""
        kind = next(name for name in type(self).model_fields if getattr(self, name) is self.section)
        kept = _values(self.section, Change.IMMUTABLE, f"spec.destination.{kind}")
        return {"spec.destination": kind, **{where: str(value) for where, value in kept}}


def _values(settings: Model, change: Change, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field of this change class."""
    for name, field in type(settings).model_fields.items():
        value, where = getattr(settings, name), f"{path}.{field.alias or name}"
        assert isinstance(field.json_schema_extra, dict)
        if isinstance(value, Model):
            yield from _values(value, change, where)
        elif field.json_schema_extra[CHANGE] == change:
            yield where, value


if TYPE_CHECKING:
    DestinationSpec = DestinationSection
    SPARK_SECTIONS: tuple[str, ...]
    """The names of the sections of destinations that use Spark, or may use it."""
    KEEPING_SECTIONS: tuple[str, ...]
    """The names of the sections of destinations that keep deleted rows, or may do so."""
else:
    _SECTIONS = {**own_sections(DESTINATIONS), "custom": CustomDestination}
    SPARK_SECTIONS = tuple(name for name, section in _SECTIONS.items() if section.spark)
    KEEPING_SECTIONS = tuple(name for name, section in _SECTIONS.items() if section.keeps_deleted)

    def _spec() -> type[DestinationSection]:
        fields: dict[str, Any] = {
            name: (section | None, setting(Change.IMMUTABLE, None, description=getdoc(section)))
            for name, section in _SECTIONS.items()
        }
        made = create_model("DestinationSpec", __base__=DestinationSection, **fields)
        made.__doc__ = "The destination. Exactly one kind must be set."
        made.rules = (exactly_one(*_SECTIONS, what="destination"),)
        return made

    DestinationSpec = _spec()
