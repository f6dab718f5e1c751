"""The arguments and options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from levada.cli.command import VARIABLE, WORK_DIR
from levada.cli.output import Output


class Until(StrEnum):
    """The goals at which `levada run` ends."""

    CAUGHT_UP = "caught-up"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


ManifestFile = Annotated[
    Path,
    typer.Argument(
        metavar="MANIFEST",
        help="YAML file with one Pipeline and its TableSyncs.",
        envvar=VARIABLE,
        exists=True,
        dir_okay=False,
    ),
]
Tables = Annotated[list[str] | None, typer.Argument(metavar="TABLE", help="Table names, as schema.name.")]
Secrets = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="DIR",
        help="Folder with a subfolder for each Secret, which has a file for each key.",
        envvar="LEVADA_SECRETS",
        file_okay=False,
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        "--work-dir",
        metavar="DIR",
        help="Folder for caches, and for staged changes if staging.uri is not set."
        " Default: .levada/<pipeline> next to MANIFEST.",
        envvar=WORK_DIR,
    ),
]
Format = Annotated[Output, typer.Option("-o", "--output", help="Output format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
