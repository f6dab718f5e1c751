"""The masks that comments at the source give to columns. Pure.

A comment asks for a mask by one word, among any others:

========================= ===========================================
Word                      Mask
========================= ===========================================
``levada:mask=hmac``      ``HMAC``, with the key of the manifest
``levada:mask=null``      ``Null``
``levada:mask=truncate:4`` ``Truncate`` with the length 4
``levada:mask=last:4``    ``Last`` with the length 4
========================= ===========================================

Letters may have either case. A word that is none of these has a problem, and its column the mask ``Null`` until that is
resolved. So a typo replicates nothing in clear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from levada.errors import NeedsOperator
from levada.schema.masks import Mask, TableMasks
from levada.spec.columns import LONGEST
from levada.values import MaskMethod, QualifiedTable, quote_identifier, resync_command

_WORD: Final = re.compile(r"(?<!\w)levada:(\S+|\s+mask\S*)", re.IGNORECASE)
_MASK: Final = re.compile(r"mask=(?:(hmac|null)|(truncate|last):([1-9]\d{0,6}))", re.IGNORECASE | re.ASCII)
_NOTHING: Final = Mask(MaskMethod.NULL)
_STRENGTH: Final = {MaskMethod.NULL: 3, MaskMethod.HMAC: 2, MaskMethod.TRUNCATE: 1, MaskMethod.LAST: 1}


@dataclass(frozen=True, slots=True)
class MaskComments:
    """The comments of a table's columns that name Levada, by column in the order of the names."""

    entries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, comments: Mapping[str, str]) -> MaskComments:
        """Return those comments of columns that have such a word."""
        return cls(tuple(sorted((name, text) for name, text in comments.items() if _WORD.search(text))))

    def over(self, masks: TableMasks, key_id: str) -> TableMasks:
        """Return the masks of a table with ``masks`` in the manifest. A column with two has the stricter one.

        ``key_id`` identifies the key of HMACs, and is empty without one.
        """
        if not self.entries:
            return masks
        chosen = dict(masks.entries)
        for name, text in self.entries:
            wanted = _parsed(text, key_id)[0]
            chosen[name] = _stricter(chosen[name], wanted)[0] if name in chosen else wanted
        return TableMasks.of(chosen)

    def problem(self, table: QualifiedTable, masks: TableMasks, key_id: str) -> NeedsOperator | None:
        """Return the error of a comment that says no mask, or none that fits to ``masks`` of the manifest."""
        for name, text in self.entries:
            wanted, why = _parsed(text, key_id)
            known = masks.get(name)
            if not why and known is not None:
                why = _stricter(known, wanted)[1]
            if why:
                column = f"{table.sql}.{quote_identifier(name)}"
                return NeedsOperator(
                    "mask_comment_refused",
                    f"the comment of column {name} of table {table} {why}. The table is not copied, because the column"
                    " could be replicated in clear",
                    hint=f"correct it, such as: COMMENT ON COLUMN {column} IS 'levada:mask=hmac'."
                    f" Then: {resync_command(table)}",
                )
        return None


NO_COMMENTS: Final = MaskComments()


def _parsed(text: str, key_id: str) -> tuple[Mask, str]:
    """Return the mask that a comment asks for, and why it does not, empty if it does."""
    words = [word.strip() for word in _WORD.findall(text)]
    if len(words) > 1:
        return _NOTHING, f"has {len(words)} words that begin with levada:, and only one is possible"
    found = _MASK.fullmatch(words[0])
    if found is None or int(found[3] or 1) > LONGEST:
        # The text is not shown: a comment may have a value.
        return _NOTHING, (
            "has a word after levada: that is none of mask=hmac, mask=null, mask=truncate:N and mask=last:N"
        )
    method = MaskMethod[(found[1] or found[2]).upper()]
    if method is MaskMethod.HMAC and not key_id:
        return _NOTHING, "asks for an HMAC, and the manifest has no key (tables.maskKeySecretRef)"
    return Mask(method, int(found[3] or 0), key_id if method is MaskMethod.HMAC else ""), ""


def _stricter(one: Mask, other: Mask) -> tuple[Mask, str]:
    """Return the mask that leaves less of a value, and why none does, empty if one does."""
    strengths = _STRENGTH[one.method], _STRENGTH[other.method]
    if strengths[0] != strengths[1]:
        return (one if strengths[0] > strengths[1] else other), ""
    if one.method is not other.method:
        return _NOTHING, f"asks for {other.method.value}, and columns.mask of the TableSync for {one.method.value}"
    return (one if one.length <= other.length else other), ""
