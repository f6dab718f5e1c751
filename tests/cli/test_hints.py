"""Hints that run as printed."""

from __future__ import annotations

import shlex
from pathlib import Path

from levada.cli.hints import Invocation, runnable, set_invocation


def test_without_a_manifest_the_hint_stays() -> None:
    """A library's caller has no command line."""
    assert runnable("levada retry MANIFEST public.t") == "levada retry MANIFEST public.t"


def test_the_command_names_the_manifest_and_its_options() -> None:
    """The command that is printed can be pasted into a shell, whatever the paths are."""
    set_invocation(Invocation(Path("my shop/pipeline.yaml"), Path("secrets"), Path("/work dir")))
    hint = runnable("copy it again: levada resync MANIFEST public.t")
    assert shlex.split(hint.partition(": ")[2]) == [
        "levada", "resync", "my shop/pipeline.yaml", "--secrets", "secrets", "public.t",
    ]  # fmt: skip
    assert runnable("levada status MANIFEST").endswith("--secrets secrets --work-dir '/work dir'")
