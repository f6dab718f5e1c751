"""The masks that comments ask for."""

from __future__ import annotations

import pytest

from levada.schema.mask_comments import MaskComments
from levada.schema.masks import NO_MASKS, Mask, TableMasks
from levada.values import MaskMethod, QualifiedTable

PEOPLE = QualifiedTable("public", "people")
KEY = "the identifier of a key"
HMAC, NOTHING = Mask(MaskMethod.HMAC, key_id=KEY), Mask(MaskMethod.NULL)


def first(length: int) -> Mask:
    """Return the mask that keeps the first characters."""
    return Mask(MaskMethod.TRUNCATE, length)


def last(length: int) -> Mask:
    """Return the mask that keeps the last characters."""
    return Mask(MaskMethod.LAST, length)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("levada:mask=hmac", HMAC),
        ("The address. LEVADA:Mask=Hmac", HMAC),
        ("levada: mask=null", NOTHING),
        ("a\nlevada:mask=truncate:64\nb", first(64)),
        ("(levada:mask=last:4", last(4)),
    ],
)
def test_words(text: str, mask: Mask) -> None:
    """A word in any place and of either case is a mask."""
    comments = MaskComments.of({"email": text})
    assert comments.over(NO_MASKS, KEY) == TableMasks.of({"email": mask})
    assert comments.problem(PEOPLE, NO_MASKS, KEY) is None


@pytest.mark.parametrize("text", ["", "by Levada: see the wiki", "levada", "mylevada:mask=hmac", "levada :mask=hmac"])
def test_other_comments(text: str) -> None:
    """A comment without such a word is none."""
    assert MaskComments.of({"email": text}) == MaskComments()


@pytest.mark.parametrize(
    "text",
    [
        "levada:mask=hmca",
        "levada:mask",
        "levada:hmac",
        "levada:mask= hmac",
        "levada:mask=last",
        "levada:mask=last:0",
        "levada:mask=last:9999999",
        "levada:mask=hmac.",
        "levada:mask=hmac:4",
        "levada:mask=hmac levada:mask=hmac",
        "levada:mask=truncate:٤",
    ],
)
def test_a_word_that_is_no_mask(text: str) -> None:
    """It has a problem that does not show the comment, and replicates nothing of the column."""
    comments = MaskComments.of({"email": text})
    assert comments.over(NO_MASKS, KEY) == TableMasks.of({"email": NOTHING})
    problem = comments.problem(PEOPLE, NO_MASKS, KEY)
    assert problem is not None
    assert problem.code == "mask_comment_refused"
    assert text not in problem.message


def test_an_hmac_needs_a_key() -> None:
    """Without one it has a problem, and replicates nothing of the column."""
    comments = MaskComments.of({"email": "levada:mask=hmac"})
    assert comments.over(NO_MASKS, "") == TableMasks.of({"email": NOTHING})
    assert comments.problem(PEOPLE, NO_MASKS, "") is not None


ORDERED = [NOTHING, HMAC, first(3), first(4)]
WORDS = {NOTHING: "null", HMAC: "hmac", first(3): "truncate:3", first(4): "truncate:4", last(3): "last:3"}


@pytest.mark.parametrize("stricter", range(len(ORDERED)))
def test_the_stricter_one_holds(stricter: int) -> None:
    """Whichever of the manifest and the comment has it. Other columns keep theirs."""
    for other in range(stricter, len(ORDERED)):
        for known, word in ((stricter, other), (other, stricter)):
            comments = MaskComments.of({"email": f"levada:mask={WORDS[ORDERED[word]]}"})
            masks = TableMasks.of({"email": ORDERED[known], "card": last(4)})
            assert comments.over(masks, KEY) == TableMasks.of({"email": ORDERED[stricter], "card": last(4)})
            assert comments.problem(PEOPLE, masks, KEY) is None


def test_neither_is_stricter() -> None:
    """The first and the last characters leave nothing, and have a problem."""
    comments, masks = MaskComments.of({"email": "levada:mask=last:3"}), TableMasks.of({"email": first(3)})
    assert comments.over(masks, KEY) == TableMasks.of({"email": NOTHING})
    assert comments.problem(PEOPLE, masks, KEY) is not None
