"""``python -m tests.cluster.bringup build | up | down | image | run COMMAND | enter COMMAND``: by hand and by make."""

from __future__ import annotations

import argparse
import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.cluster.bringup import node
from tests.cluster.bringup.images import build_image, ensure_image, load_pause
from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.machine import IMAGE_PACKAGES, NODE_PACKAGES, missing
from tests.cluster.bringup.programs import ensure_programs
from tests.servers.debian import install


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="bringup", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build all that a cluster needs, and Levada's image of these sources")
    commands.add_parser("up", help="start the cluster, print its KUBECONFIG; it stays until `down`")
    commands.add_parser("down", help="end the cluster; programs and images stay")
    commands.add_parser("image", help="build Levada's image of these sources, load it into the node, print its name")
    run = commands.add_parser("run", help="run a command with a cluster that ends with it")
    for able in (build, run):
        able.add_argument("--or-skip", action="store_true", help="end well where this machine cannot have a cluster")
    enter = commands.add_parser("enter", help="run a command on the node")
    for taking in (run, enter):
        taking.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    words = getattr(options, "words", [])
    words = words[1:] if words[:1] == ["--"] else words
    layout = Layout.default()
    if options.command == "enter":
        return subprocess.run(node.enter(layout, *words), check=False).returncode
    if options.command == "image":
        print(ensure_image(layout))
        return 0
    if options.command == "down":
        node.down(layout)
        return 0
    if lacks := missing(layout):
        print("no cluster here:", *(f"  {lack}" for lack in lacks), sep="\n", file=sys.stderr)
        return 0 if getattr(options, "or_skip", False) else 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.command == "build":
        _build(layout)
        return 0
    if options.command == "run":
        return _run(layout, words)
    with _turn(layout):
        _up(layout)
        (layout.state / "kept").touch()
    path = layout.kubeconfig()
    print(f"export KUBECONFIG={path} PATH={layout.programs}:$PATH")
    return 0


def _build(layout: Layout) -> None:
    install(NODE_PACKAGES | IMAGE_PACKAGES)
    ensure_programs(layout)
    build_image(layout)


def _run(layout: Layout, words: list[str]) -> int:
    with _turn(layout):
        kept = node.running(layout) and (layout.state / "kept").exists()
        try:
            if not kept:
                # A running cluster that is not marked as kept is left from a run that was killed.
                node.down(layout)
                _up(layout)
            with subprocess.Popen(words, env=layout.environment()) as process:
                try:
                    return process.wait()
                except BaseException:
                    process.terminate()
                    process.wait(60)
                    raise
        finally:
            if not kept:
                node.down(layout)


def _up(layout: Layout) -> None:
    install(NODE_PACKAGES)
    ensure_programs(layout)
    (layout.state / "kept").unlink(missing_ok=True)
    try:
        node.up(layout, load_pause)
    except BaseException:
        node.down(layout)
        raise


@contextmanager
def _turn(layout: Layout) -> Iterator[None]:
    """Let in one process at a time: there is one cluster."""
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run to give the cluster back", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
