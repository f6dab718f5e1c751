"""Arguments, folders and terminals that are not as they should be: no end is an ``internal_error``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.rigs.command_line import levada
from tests.rigs.waiting import LIMIT_S
from tests.runtime import samples

from levada.errors import NeedsOperator
from levada.runtime.host.work_dir import published_address, running_progress


def run_levada(*args: object) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with its output in a pipe that nothing reads."""
    command = [sys.executable, "-m", "levada", *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    return subprocess.CompletedProcess(command, process.wait(LIMIT_S), "", errors)


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Answer any request with these bytes, on the port that is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("command", [["schema"], ["version"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(command: list[str]) -> None:
    """As with ``| head -1``: nothing is printed for it."""
    done = run_levada(*command)
    assert (done.returncode, done.stderr) in [(0, ""), (1, "")]


@pytest.mark.usefixtures("own_process")
def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    """A program that starts the command may have closed them. No other file gets their numbers."""
    (tmp_path / "opened.py").write_text("import levada.cli, sys; print(open(__file__).fileno()); sys.stdin.read()")
    command = 'cd "$1"; "$0" -m levada version <&- >&- || echo $? > failed; exec "$0" opened.py <&- 2>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable, tmp_path], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) > 2
    assert not (tmp_path / "failed").exists()


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_a_time_limit_is_a_number(tmp_path: Path, seconds: str) -> None:
    """Python takes ``nan`` for a number. As a limit it would never be over."""
    manifest = tmp_path / "pipeline.yaml"
    manifest.touch()
    done = levada("run", manifest, "--until", "caught-up", "--timeout", seconds)
    assert done.exit_code == 2
    assert "--timeout" in done.stderr


@pytest.mark.parametrize("kind", ["a file", "a folder with a folder", "too long"])
def test_no_engine_runs_in_a_folder_that_is_none(tmp_path: Path, kind: str) -> None:
    """The status is then that of the store."""
    folder = tmp_path / ("x" * 300 if kind == "too long" else "work")
    if kind == "a file":
        folder.touch()
    elif kind == "a folder with a folder":
        (folder / "engine.json").mkdir(parents=True)
    assert running_progress(folder) is None
    with pytest.raises(NeedsOperator) as unusable, published_address(folder, "http://127.0.0.1:1"):
        pass
    assert unusable.value.code == "work_dir_unusable"


def test_a_stale_address_is_no_engine(tmp_path: Path) -> None:
    """An engine that was killed leaves its address, and another server may have taken the port since."""
    header = b"HTTP/1.0 200 OK\r\n\r\n"
    other = json.dumps({"pipeline": "other"}).encode()
    for body in (b"SSH-2.0\r\n", header + b"[]", header + b"{}", header + other):
        with answering(body) as address, published_address(tmp_path, address):
            assert running_progress(tmp_path, "shop") is None, body
    with answering(header + other) as address, published_address(tmp_path, address):
        with pytest.raises(NeedsOperator) as raised:
            running_progress(tmp_path, "other")
        assert raised.value.code == "progress_unreadable"


def test_an_engine_of_another_version_is_named(tmp_path: Path) -> None:
    """Its document may mean something else, so none of it is shown."""
    newer = json.dumps(samples.progress().to_json() | {"version": 2}).encode()
    with (
        answering(b"HTTP/1.0 200 OK\r\n\r\n" + newer) as address,
        published_address(tmp_path, address),
        pytest.raises(NeedsOperator, match="version 2"),
    ):
        running_progress(tmp_path, "shop")


TEXT = """\
apiVersion: levada.dev/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  source: {host: 127.0.0.1, port: 1, database: shop}
  tables:
    include: [{schema: public, name: "*"}]
  destination:
    iceberg: {catalog: {type: Hadoop, warehouse: "file:///lake"}, namespace: shop}
"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "needs exactly one Pipeline, has 0 [invalid_manifest]\n  hint: levada init DSN writes a manifest"),
        (b"# nothing yet\n", "has 0 [invalid_manifest]\n  hint: levada init DSN writes a manifest"),
        (bytes(range(256)), "is not UTF-8 text [invalid_manifest]\n  hint: save the file as UTF-8"),
        ("name: Größe\n".encode("latin-1"), "is not UTF-8 text [invalid_manifest]\n  hint: save the file as UTF-8"),
        (TEXT.encode("utf-16"), "is not UTF-8 text [invalid_manifest]\n  hint: save the file as UTF-8"),
        (TEXT.replace("    include", "\tinclude").encode(), ":7: is not YAML: it has a tab where YAML needs spaces"),
        (
            TEXT.replace("  tables", "  source: {}\n  tables").encode(),
            ":6: spec.source: is a duplicate of the key in line 5",
        ),
        (f"{TEXT}---\n{TEXT}".encode(), "needs exactly one Pipeline, has 2 [invalid_manifest]"),
        (b"just text\n", ":1: kind: is required: Pipeline or TableSync [invalid_manifest]"),
        (b"kind: 5\n", ":1: kind: is unknown: known words: Pipeline, TableSync [invalid_manifest]"),
        (b"kind: Pipelines\n", ":1: kind: is unknown: did you mean Pipeline? [invalid_manifest]"),
    ],
)
def test_a_file_that_is_no_manifest_is_one_error(content: bytes, message: str, tmp_path: Path) -> None:
    """The error has the code, and what is wrong with the file in words of a user who does not know YAML's parser."""
    manifest = tmp_path / "pipeline.yaml"
    manifest.write_bytes(content)
    done = levada("check", manifest)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.parametrize("form", ["\r\n", "\ufeff"])
def test_an_editor_of_another_system_is_no_problem(form: str, tmp_path: Path) -> None:
    """Lines that end as on Windows, and a byte order mark, are read like any text."""
    manifest = tmp_path / "pipeline.yaml"
    text = f"{form}{TEXT}" if form == "\ufeff" else TEXT.replace("\n", form)
    manifest.write_bytes(text.encode())
    done = levada("lag", manifest)
    assert (done.exit_code, "[source_unreachable]" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "Missing argument 'MANIFEST'"),
        (["check", "-"], "'-' does not exist"),
        (["check", "."], "'.' is a directory"),
        (["check", __file__, "--secrets", __file__], "is a file"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["init"], "there is no terminal to ask on"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments: list[str], words: str) -> None:
    """The exit code is 2, and the text names the argument."""
    done = levada(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.replace("\u2502", " ").split())
