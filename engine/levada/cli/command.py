"""The classes of commands: how they print their usage and errors, and where they find their manifest."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from levada.cli.exit_codes import Exit
from levada.cli.manifests import forget_variables
from levada.cli.output import show_error, stdout_closed
from levada.errors import InvalidManifest

VARIABLE: Final = "LEVADA_MANIFEST"
WORK_DIR: Final = "LEVADA_WORK_DIR"
_SUFFIXES: Final = frozenset({".yaml", ".yml"})


class Command(TyperCommand):
    """A command. Its usage line has required arguments as plain words, as manuals have them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line. Newer versions of Typer put required arguments into braces."""
        return [re.sub(r"^{(.*)}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


class NamesCommand(Command):
    """A command such as ``levada retry MANIFEST TABLE``, which is ``levada retry TABLE`` in a driver's pod.

    The first argument is the manifest if it is an existing file or is written like one. So a command line with a
    manifest has the same meaning with and without the variable.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Put the manifest of the environment before names without one."""
        manifest = os.environ.get(VARIABLE)
        if manifest and not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            first = given.get("manifest")
            if isinstance(first, str) and not _is_path(first):
                args = [manifest, *args]
        return super().parse_args(ctx, args)


def _is_path(word: str) -> bool:
    """Return True if the word names a file. A mistyped path must not become the name of a table."""
    return os.sep in word or Path(word).suffix in _SUFFIXES or Path(word).is_file()


class Commands(TyperGroup):
    """The command group. It prints every error as message, code and hint, and a traceback only with ``--debug``."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Exit with the code that it returns, or print its error and exit with that error's code."""
        forget_variables()
        try:
            end = super().invoke(ctx)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and stdout_closed():
                raise typer.Exit(Exit.FAILED) from None
            show_error(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(Exit.USAGE if isinstance(error, InvalidManifest) else Exit.FAILED) from None
        if isinstance(end, Exit) and end is not Exit.OK:
            raise typer.Exit(end)
        return None
