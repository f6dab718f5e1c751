"""One word has one meaning: the names of the code agree with the glossary."""

from __future__ import annotations

import ast
import re

from tests.lint.tree import ROOT, Tree

TREE = Tree(ROOT)
CUT_ROOMS = re.compile(
    r"/(\w*cuts?\w*|config|limits|interface|running|progress|names)\.py$|/runtime/stages/messages\.py$"
)
"""The modules of what users name by `levada cut`, and those of settings and reports."""


def test_the_glossary_has_the_words_of_holds_and_cuts() -> None:
    """A reader finds each of the words that name parts of the engine."""
    words = set(re.findall(r"^\| ([\w ]+?) \|", TREE.text("docs/glossary.md"), re.MULTILINE))
    assert {"cut", "guard", "hold", "key index", "verification"} <= words


def test_a_cut_is_of_all_tables() -> None:
    """A verification or an erasure holds one table, which is no cut."""
    cuts = {
        f"{path}: {node.name}"
        for path in TREE.below("engine/levada")
        for node in TREE.module(path).nodes(ast.ClassDef)
        if re.search(r"Cut(?![a-z])|Cuts(?![a-z])", node.name) and not CUT_ROOMS.search(path)
    }
    assert not cuts
