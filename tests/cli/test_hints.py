"""Hints that run as printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

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
    assert runnable("levada --debug check MANIFEST").startswith(
        "levada --debug check 'my shop/pipeline.yaml' --secrets"
    )


def test_the_command_runs_in_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a driver's pod the hint is a command for where kubectl is. The variables of the pod have the options."""
    monkeypatch.setenv("LEVADA_COMMAND_PREFIX", "kubectl -n data exec shop-driver-0 -c driver --")
    set_invocation(Invocation(Path("/etc/levada/pipeline.yaml"), Path("/etc/levada/secrets"), Path("/var/lib/levada")))
    assert runnable("levada resync MANIFEST --all") == (
        "kubectl -n data exec shop-driver-0 -c driver -- levada resync /etc/levada/pipeline.yaml --all"
    )
