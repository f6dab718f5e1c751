"""Downloads before a command: the jars that a manifest's destination needs, with a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from levada.cli.formatting import size
from levada.cli.output import error_console
from levada.errors import LevadaError
from levada.local.jars import Downloaded, Jar, ensure_jars, jars_folder
from levada.runtime.host.plugins import destination_class
from levada.spec import Manifests


class _EndedError(Exception):
    """The download was ended by a signal."""


def prepare(manifests: Manifests, ended: Callable[[], bool] = lambda: False) -> bool:
    """Download the jars that the manifest's destination needs and this machine lacks.

    Return False if ``ended`` returned True meanwhile. An error is left to the command, which reports it among others.
    """
    try:
        jars = [jar for jar in destination_class(manifests).jars() if not (jars_folder() / jar.file_name).exists()]
        if jars:
            fetch(jars, ended)
    except _EndedError:
        return False
    except LevadaError:
        return True
    return True


def fetch(jars: Sequence[Jar], ended: Callable[[], bool] = lambda: False) -> tuple[Path, ...]:
    """Download jars into the cache, and show on standard error which ones and where to. Return their paths."""
    target = error_console()
    total = sum(jar.bytes for jar in jars)
    target.print(f"downloading {len(jars)} jars for Spark ({size(total)}) into {jars_folder()}", markup=False)
    with _bar() if target.is_terminal else _no_bar() as show:

        def downloaded(jar: Jar, count: int) -> None:
            if ended():
                raise _EndedError
            show(jar, count)

        return ensure_jars(jars, downloaded)


@contextmanager
def _bar() -> Iterator[Downloaded]:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=error_console()) as progress:
        bars: dict[Jar, TaskID] = {}

        def show(jar: Jar, count: int) -> None:
            if jar not in bars:
                for before in bars.values():
                    progress.update(before, completed=progress.tasks[before].total)
                bars[jar] = progress.add_task(jar.file_name, total=jar.bytes)
            progress.update(bars[jar], completed=count)

        yield show


@contextmanager
def _no_bar() -> Iterator[Downloaded]:
    yield lambda jar, count: None
