"""Pages of the documentation as scripts: their blocks of code, run one after the other in one shell.

A block of ``sh``, ``sql`` (for psql) or ``python`` is run. A block of ``text`` has lines of the output of the block
before it. Numbers may differ, and so may their units. A block of ``yaml`` whose first line is a comment with a file's
name is written to that file. An HTML comment ``<!-- not run: reason -->`` before a block leaves it out.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_BLOCK: Final = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
_FILE: Final = re.compile(r"# ([\w./-]+\.yaml)\n")
_NUMBER: Final = re.compile(r"[0-9A-F]+/[0-9A-F]{2,}|(?:\d[\d,.]*(?:[KMGT]i|[smhd](?![a-z]))?)+")
_LANGUAGES: Final = ("sh", "sql", "python", "yaml")
_END: Final = "end of block"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, its page and first line there, and the lines that its output must have."""

    page: str
    line: int
    language: str
    code: str
    outputs: tuple[str, ...]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are run, each with its outputs."""
    text = page.read_text("utf-8")
    found = [m for m in _BLOCK.finditer(text) if not m["skip"]]
    for number, match in enumerate(found):
        if match["language"] not in _LANGUAGES:
            continue
        following = found[number + 1 : number + 2]
        outputs = [m["code"] for m in following if m["language"] == "text"]
        line = text.count("\n", 0, match.start("code")) + 1
        yield Block(page.name, line, match["language"], match["code"], tuple("".join(outputs).splitlines()))


def parts_of(page: Path) -> list[dict[str, Any]]:
    """Return the blocks of a page that are a part of a Pipeline's ``spec`` or of other values in YAML."""
    parts = [yaml.safe_load(block.code) for block in blocks_of(page) if block.language == "yaml"]
    return [part.get("spec", part) for part in parts if isinstance(part, dict)]


def run_page(
    pages: Path | Sequence[Path],
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float = 1500,
    *,
    notes: Path | None = None,
    adapted: Mapping[str, str] | None = None,
    languages: Collection[str] = _LANGUAGES,
) -> None:
    """Run the blocks of pages in a folder. Raise AssertionError for one that fails or prints something else.

    The script and what it prints are in the folder ``notes``, which is that of the page unless it is given. ``adapted``
    has what a reader replaces, such as the address of a server, and what takes its place here. Blocks of other
    ``languages`` are left out.
    """
    pages = [pages] if isinstance(pages, Path) else pages
    blocks = [block for page in pages for block in blocks_of(page) if block.language in languages]
    assert blocks
    notes = notes or folder
    commands = "".join(map(_shell, blocks))
    for written, here in (adapted or {}).items():
        assert written in commands, f"no block of {[page.name for page in pages]} has {written!r}"
        commands = commands.replace(written, here)
    script = notes / "page.sh"
    script.write_text(f"set -eu\n{commands}")
    with (notes / "output").open("w+") as output:
        process = subprocess.Popen(
            ["bash", script],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        finally:
            # The page may leave processes in the background when it fails.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        parts = output.read().split(f"{_END}\n")
    at = blocks[min(len(parts), len(blocks)) - 1]
    assert code == 0, f"{at.page}:{at.line}: exit code {code}\n{parts[-1]}"
    for block, printed in zip(blocks, parts, strict=False):
        lines = {_normal(line) for line in printed.splitlines()}
        missing = [line for line in block.outputs if line.strip() and _normal(line) not in lines]
        assert not missing, f"{block.page}:{block.line}: not in the output: {missing}\n{printed}"


def _shell(block: Block) -> str:
    """Return the block as commands of the shell."""
    match block.language:
        case "sh":
            code = block.code
        case "sql":
            code = f"psql -qX -v ON_ERROR_STOP=1 <<'end of sql'\n{block.code}end of sql\n"
        case "python":
            code = f"python - <<'end of python'\n{block.code}end of python\n"
        case _:
            named = _FILE.match(block.code)
            code = f"cat > {named[1]} <<'end of file'\n{block.code}end of file\n" if named else ""
    return f"{code}echo {_END}\n"


def _normal(line: str) -> str:
    return " ".join(_NUMBER.sub("N", line).split())


PAGES = [
    "start/laptop.md",
    "tutorials/first-pipeline.md",
    "tutorials/failed-table.md",
    "tutorials/change-capture.md",
    "setup/postgresql.md",
    "guides/partitions.md",
    "guides/sizing.md",
]
