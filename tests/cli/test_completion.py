"""Completion in real shells: the printed script is read, and the shell's own completion is asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.waiting import LIMIT_S

BASH = """
eval "$(levada --show-completion bash)"
complete() { words=("$@"); COMP_WORDS=(levada "$@"); COMP_CWORD=$#; COMPREPLY=(); _levada_completion levada
  printf '%s\\n' "${COMPREPLY[@]}"; }
complete ""; echo ====; complete run --
"""
# The functions that show candidates print them here, because no line is edited.
ZSH = """
autoload -Uz compinit; compinit -u -D
eval "$(levada --show-completion zsh)"
_describe() { print -l "${(@P)2}" }; _arguments() { print -l "$@" }; compadd() { print -l "$@" }
words=(levada ""); CURRENT=2; _levada_completion; echo '===='; words=(levada run --); CURRENT=3; _levada_completion
"""
FISH = """
levada --show-completion fish | source
complete -C "levada "; echo ====; complete -C "levada run --"
"""


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize(
    ("shell", "script"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)], ids=["bash", "zsh", "fish"]
)
def test_commands_and_options_are_completed(shell: str, script: str, tmp_path: Path) -> None:
    """After ``levada`` the shell offers the commands, and after ``levada run --`` the options of that command."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        # The name of the shell is an argument of --show-completion then.
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    done = subprocess.run(
        [shell, "-c", script], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    commands, separated, options = done.stdout.partition("====\n")
    assert separated, done.stderr
    for command in ("init", "run", "status", "verify"):
        assert re.search(rf"\b{command}\b", commands), done
    for option in ("--secrets", "--until", "--timeout"):
        assert option in options, done
    assert "--yes" not in options, "an option of other commands"
