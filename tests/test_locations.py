"""Names as parts of paths, and what lies below what."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.locations import MAX_NAME_BYTES, folded_name, lies_below, source_name, target_name

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(NAMES)
def test_a_name_becomes_one_part_of_a_path_and_comes_back(name: str) -> None:
    """No name is a path of its own, none is hidden or cut, and no two become one."""
    target = target_name(name)
    assert source_name(target) == name
    assert lies_below(f"s3://bucket/lake/{target}", "s3://bucket/lake")
    assert not set(target) & set('/\\#?.:*"<>|')
    assert target.strip() == target
    assert all(c.isprintable() for c in target)


@given(NAMES.filter(lambda name: len(name.encode()) <= 63))
def test_no_identifier_of_postgres_is_too_long(name: str) -> None:
    """63 bytes, each encoded, are fewer than a file system takes."""
    assert len(target_name(name).encode()) <= MAX_NAME_BYTES


@pytest.mark.parametrize("name", ["orders", "Orders_2026", "a-b", "größe", "注文", "pg$1", "line items"])
def test_an_ordinary_name_stays(name: str) -> None:
    """A table is found in the lake under the name that it has at the source."""
    assert target_name(name) == name


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("..", "%2E%2E"),
        ("../../x", "%2E%2E%2F%2E%2E%2Fx"),
        ("a.b", "a%2Eb"),
        ("50%", "50%25"),
        (" a ", "%20a%20"),
        ("a\nb\t", "a%0Ab%09"),
        ("a\u2028", "a%E2%80%A8"),
        ("what?#\\", "what%3F%23%5C"),
    ],
)
def test_any_other_character_is_encoded(name: str, target: str) -> None:
    """By the bytes of its UTF-8, as in a URI."""
    assert target_name(name) == target


@pytest.mark.parametrize(("one", "other"), [("Orders", "oRDERS"), ("caf\u00e9", "cafe\u0301"), ("STRASSE", "straße")])
def test_names_that_some_systems_take_for_one(one: str, other: str) -> None:
    """They differ in case, or in how their letters are composed."""
    assert folded_name(one) == folded_name(other)


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/lake/t/data/x", "/lake/t/data"),
        ("/lake/t/data/x/", "/lake/t/data/"),
        ("file:///lake/t/data/x/y", "file:/lake/t/data"),
        ("file:/lake/t/data/x", "/lake/t/data"),
        ("file://localhost/lake/x", "file:///lake"),
        ("s3://bucket/t/data/x/", "s3://bucket/t/data/"),
        ("s3://bucket/%2E%2E/data/x", "s3://bucket/%2E%2E/data"),
        ("/lake/shop/%2E%2E", "/lake"),
    ],
)
def test_what_lies_below(location: str, folder: str) -> None:
    """A plain path and a file's URI are equal. Slashes at the end do not count."""
    assert lies_below(location, folder)


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/lake/t/data", "/lake/t/data"),
        ("/lake/t/data/", "/lake/t/data"),
        ("/lake/t/data//", "/lake/t/data"),
        ("/lake/t/data/.", "/lake/t/data"),
        ("/lake/t/data/..", "/lake/t/data"),
        ("/lake/t/data/../../u", "/lake/t/data"),
        ("/lake/t/data/x/../..", "/lake/t/data"),
        ("/lake/t/data/%2e%2e/u", "/lake/t/data"),
        ("/lake/t/data/..%2F..", "/lake/t/data"),
        ("/lake/t/data/..\\u", "/lake/t/data"),
        ("/lake/t/data//x", "/lake/t/data"),
        ("/lake/t/database/x", "/lake/t/data"),
        ("s3://other/t/data/x", "s3://bucket/t/data"),
        ("s3://bucket/t/data/x", "gs://bucket/t/data"),
        ("/bucket/t/data/x", "s3://bucket/t/data"),
        ("x", ""),
        ("/etc", "/"),
        ("", "/lake"),
    ],
)
def test_what_does_not_lie_below(location: str, folder: str) -> None:
    """The folder itself, what climbs out of it in any spelling, what only begins alike, and other storage."""
    assert not lies_below(location, folder)


def test_a_link_out_of_the_folder_does_not_lie_below(tmp_path: Path) -> None:
    """The target of a link counts, not its place. A link to the folder as a whole changes nothing."""
    (tmp_path / "other").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "away").symlink_to(tmp_path / "other")
    (tmp_path / "lake").symlink_to(tmp_path / "data")
    assert not lies_below(f"{tmp_path}/data/away", f"{tmp_path}/data")
    assert not lies_below(f"{tmp_path}/data/away/x", f"{tmp_path}/data")
    assert lies_below(f"{tmp_path}/lake/x", f"{tmp_path}/lake")
