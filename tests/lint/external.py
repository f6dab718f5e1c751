"""Linters that are programs of their own. CI runs them, as they are slow or installed on their first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.lint.tree import Finding, Tree

WORKFLOWS: Final = ".github/workflows"
ACTIONLINT: Final = "v1.7.12"


class UnavailableError(Exception):
    """This machine cannot have a program, for the reason in the message."""


def zizmor(tree: Tree) -> Iterator[Finding]:
    """Report actions without a hash, permissions that a job does not need, and inputs that reach a shell."""
    program = Path(sys.executable).with_name("zizmor")
    yield from run_linter(tree, ".github", [program, "--offline", "--persona=pedantic", "--no-progress", ".github"])


def actionlint(tree: Tree) -> Iterator[Finding]:
    """Report errors in the syntax, the expressions and the names of the workflows."""
    yield from run_linter(tree, WORKFLOWS, [_actionlint(), *tree.below(WORKFLOWS, suffix=".yml")])


def shellcheck(tree: Tree) -> Iterator[Finding]:
    """Report what ShellCheck warns of in the shell scripts."""
    if not shutil.which("shellcheck"):
        if os.geteuid() or not shutil.which("apt-get"):
            raise UnavailableError("shellcheck is not installed, and root can install it only on Debian")
        from tests.servers.debian import install

        install({"shellcheck": "/usr/bin/shellcheck"})
    scripts = [path for path in tree.files if path.endswith(".sh") or path.startswith(".ci/")]
    yield from run_linter(tree, "shell scripts", ["shellcheck", *scripts])


def documentation(tree: Tree) -> Iterator[Finding]:
    """Report links that lead nowhere and pages that no other page lists, by a build of the documentation."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "docs", folder]
        yield from run_linter(tree, "docs", command)


def run_linter(tree: Tree, path: str, command: Sequence[str | Path]) -> Iterator[Finding]:
    """Run a program in the tree's folder. What it prints is a finding if it fails."""
    done = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=False)
    if done.returncode:
        yield Finding(path, 0, f"\n{done.stdout}{done.stderr}")


def _actionlint() -> Path:
    """Return actionlint, built once into the cache. Raise UnavailableError on a machine without Go."""
    from levada.local.jars import cache_folder, only_process

    go = shutil.which("go")
    if go is None:
        raise UnavailableError("actionlint is built by Go, which is not installed")
    folder = cache_folder() / "tests" / f"actionlint-{ACTIONLINT}"
    if not (folder / "actionlint").exists():
        with only_process(folder):
            source = f"github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT}"
            subprocess.run([go, "install", source], env={**os.environ, "GOBIN": str(folder)}, check=True)
    return folder / "actionlint"
