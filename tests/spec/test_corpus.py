"""Every manifest of the corpus is read, or refused with all of its problems."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spec.corpus_files import CORPUS

from levada.errors import InvalidManifest
from levada.spec import PipelineManifest, load_manifests, parse_manifest


def files(kind: str) -> list[Path]:
    """List the manifests of one folder."""
    return sorted((CORPUS / kind).glob("*.yaml"))


@pytest.mark.parametrize("path", files("good"), ids=lambda path: path.stem)
def test_good_manifest_is_read(path: Path) -> None:
    """A good manifest is read, and what was read is a manifest again with the same meaning."""
    manifests = load_manifests(path.read_text(), path.name)
    for one in (manifests.pipeline, *manifests.table_syncs):
        written = one.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert parse_manifest(type(one), written, "written") == one


@pytest.mark.parametrize("path", files("bad"), ids=lambda path: path.stem)
def test_bad_manifest_is_refused(path: Path) -> None:
    """The reported problems are exactly those in the manifest's comments (``# line: field: what is wrong``)."""
    text = path.read_text()
    expected = {line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")}
    with pytest.raises(InvalidManifest) as caught:
        load_manifests(text, "")
    told = {line.strip().removeprefix(":").strip() for line in caught.value.message.splitlines()[1:]}
    assert told == expected


def test_error_names_the_file_and_counts() -> None:
    """The message begins with the file and the number of problems, and each line has the file's line."""
    with pytest.raises(InvalidManifest) as caught:
        load_manifests("kind: Pipeline\nspec: {}\n", "shop.yaml")
    assert caught.value.code == "invalid_manifest"
    first, *others = caught.value.message.splitlines()
    assert first == f"shop.yaml has {len(others)} problems:"
    assert "  shop.yaml:2: spec.source: is required" in others


def test_object_without_lines_is_refused_by_its_paths() -> None:
    """The problems of an object from Kubernetes, which has no lines, have the same paths as those of a file."""
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(PipelineManifest, {"kind": "Pipeline", "spec": 5}, "data/shop")
    assert "data/shop: spec: must be a mapping" in caught.value.message
