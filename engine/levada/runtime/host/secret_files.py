"""Secrets that a Python program gives as values, as the folder that the engine reads them from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def secret_files(secrets: Mapping[str, Mapping[str, str]]) -> Iterator[Path]:
    """Yield a folder with a folder for each Secret, which has a file for each key, and remove it at the end.

    Only this user can read it. A file that is changed meanwhile takes effect like a changed Secret. Raise ValueError
    for a name that is not one of a file.
    """
    with tempfile.TemporaryDirectory(prefix="levada-secrets-") as made:
        folder = Path(made)
        for name, keys in secrets.items():
            (folder / _file_name(name)).mkdir()
            for key, value in keys.items():
                (folder / name / _file_name(key)).write_text(value, "utf-8")
        yield folder


def _file_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a name of a Secret or a key: {name!r}")
    return name
