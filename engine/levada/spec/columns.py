"""The manifest's ``columns`` of a TableSync: those that are left out, stored as another type, or masked."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from levada.spec.model import Change, Model, Rule, StrictInt, setting
from levada.spec.names import Identifier, StoredType
from levada.values import MaskMethod

LONGEST: Final = 1_000_000
"""The most characters that a mask keeps."""


SHORTENING: Final = frozenset({MaskMethod.TRUNCATE, MaskMethod.LAST})
"""The methods that keep a number of characters."""


class Mask(Model):
    """The mask of a column."""

    rules = (
        Rule(
            "is needed by the methods Truncate and Last",
            "has(self.length) || !(self.method in ['Truncate', 'Last'])",
            lambda m: m.length is not None or m.method not in SHORTENING,
            field="length",
        ),
        Rule(
            "is only for the methods Truncate and Last",
            "!has(self.length) || self.method in ['Truncate', 'Last']",
            lambda m: m.length is None or m.method in SHORTENING,
            field="length",
        ),
    )

    method: MaskMethod = setting(Change.RESYNC)
    """HMAC: the HMAC-SHA256 of the value's text with the key of tables.maskKeySecretRef, as 64 hexadecimal digits, so
    that equal values stay equal. "Null" (in quotes, because YAML reads Null as nothing): NULL. Truncate: the first
    characters. Last: the last characters.
    """
    length: StrictInt | None = setting(Change.RESYNC, None, ge=1, le=LONGEST)
    """The number of characters that Truncate and Last keep. A shorter text stays whole."""


class Columns(Model):
    """The replicated columns."""

    rules = (
        Rule(
            "must have no column of mask, because a mask decides the type of its values",
            "!has(self.types) || !has(self.mask) || !self.mask.exists(column, column in self.types)",
            lambda m: m.types.keys().isdisjoint(m.mask),
            field="types",
        ),
    )

    exclude: Annotated[tuple[Identifier, ...], Field(max_length=1600)] = setting(Change.RESYNC, ())
    """Columns that are not replicated, as the catalog spells them."""
    types: Annotated[dict[Identifier, StoredType], Field(max_length=1600)] = setting(Change.RESYNC, {})
    """The types in which columns are stored, by column, in place of those in docs/types.md. Text: any column, as
    PostgreSQL's text. Uuid: uuid, in Iceberg's own type in place of text. Decimal(p, s): numeric, with p digits of
    which s are after the point, and onUnrepresentable for values that do not fit. List: vector and halfvec of pgvector,
    as a list of 32-bit floats. List(n): arrays with n dimensions, at least 2, as lists in lists, and onUnrepresentable
    for arrays with another number. Range: PostgreSQL's own range types, as a struct with both bounds.
    Multirange: their multiranges, as a list of such structs. Map: hstore, as a map from text to text. Wkb: geometry and
    geography of PostGIS, as bytes in PostGIS's extended WKB. A column of mask has none.
    """
    mask: Annotated[dict[Identifier, Mask], Field(max_length=1600)] = setting(Change.RESYNC, {})
    """Masks by column, as the catalog spells it. A column is masked before anything of it is written, also under
    another name after a rename.
    """
