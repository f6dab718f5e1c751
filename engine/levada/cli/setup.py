"""`levada setup`: finds Java, and downloads the jars of the built-in destinations or takes them from a bundle."""

from __future__ import annotations

from pathlib import Path

import typer

from levada.cli.downloads import fetch
from levada.cli.exit_codes import Exit
from levada.cli.formatting import size
from levada.cli.output import console, working
from levada.local.jars import built_in_jars, ensure_jars, missing_jars, read_bundle, write_bundle
from levada.local.java import require_java


def setup(written: Path | None, read: Path | None) -> Exit:
    """Fill the cache, from the bundle ``read`` if it is set. Write the bundle ``written`` if it is set.

    Print what is there, and where. Raise the error of a part that cannot be had.
    """
    if written is not None and read is not None:
        raise typer.BadParameter("not together with --offline-bundle", param_hint="--from-bundle")
    out, jars = console(), built_in_jars()
    java = require_java()
    out.print(f"Java {java.version}: {java.home}", markup=False)
    if read is not None:
        read_bundle(jars, read)
    if missing := missing_jars(jars):
        fetch(missing)
    for jar, path in zip(jars, ensure_jars(jars), strict=True):
        out.print(f"{jar}: {path}", markup=False)
    if written is not None:
        with working(f"writing {written}"):
            write_bundle(jars, written)
        out.print(f"{written}: {size(written.stat().st_size)}. On the other machine: levada setup --from-bundle FILE")
    return Exit.OK
