"""Images: the one that holds a pod's namespaces, Levada's own by `make image`, and their way into the node."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from tests.cluster.bringup.layout import SOURCES, Layout
from tests.cluster.bringup.machine import IMAGE_PACKAGES
from tests.cluster.bringup.node import enter
from tests.cluster.bringup.settings import PAUSE
from tests.servers.debian import install

from levada.local.jars import only_process

ROOT: Final = SOURCES.parents[2]
NAME: Final = "localhost/levada"
BASE: Final = "localhost/levada-base:bookworm"
_PARTS: Final = ("Dockerfile", "docker", "requirements", "pyproject.toml", "engine/levada", "operator/levada_operator")
"""The sources of the image."""
_MIRROR: Final = "http://deb.debian.org/debian"

_SETTINGS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""Files by which this machine reaches package registries: a build has them too, an image never."""
_JAVA_TRUST: Final = "/etc/ssl/certs/java/cacerts"


def ensure_image(layout: Layout, target: str = "") -> str:
    """Build Levada's image unless it is there, load it into the node, and return its name, which has a digest.

    ``target`` is a stage of the Dockerfile, by default the last one.
    """
    tag = _tag(target)
    with only_process(layout.root / "image"):
        if not _on_node(layout, tag):
            _ensure_built(tag, target)
            _load(layout, tag)
    return tag


def build_image(layout: Layout) -> None:
    """Build Levada's image unless it is there, without a node."""
    with only_process(layout.root / "image"):
        _ensure_built(_tag(), "")


def build_and_load(layout: Layout, context: Path, arguments: Mapping[str, str], names: Sequence[str]) -> None:
    """Build a folder's Containerfile on the base image, and load the image into the node under each of the names."""
    build = ["buildah", "build", "--quiet", *_isolation(), "--build-arg", f"BASE={BASE}"]
    build += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    subprocess.run([*build, *(f"--tag={name}" for name in names), str(context)], check=True, stdout=sys.stderr)
    for name in names:
        _load(layout, name)


def _tag(target: str = "") -> str:
    return f"{NAME}{target and '-'}{target}:{_digest()}"


def _digest() -> str:
    digest = hashlib.sha256()
    for path in map(ROOT.joinpath, _PARTS):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def load_pause(layout: Layout) -> None:
    """Give the node the image that every pod begins with."""
    if _on_node(layout, PAUSE):
        return
    with tempfile.TemporaryFile() as archive:
        _write_archive(archive, PAUSE, layout.programs / "pause")
        archive.seek(0)
        subprocess.run(_import(layout), stdin=archive, stdout=subprocess.DEVNULL, check=True)


def _ensure_built(tag: str, target: str) -> None:
    install(IMAGE_PACKAGES)
    if not _built(tag):
        _build(tag, target)


def _build(tag: str, target: str) -> None:
    if not _built(BASE):
        _build_base()
    print(f"building {tag}: minutes when its requirements changed, else seconds", file=sys.stderr, flush=True)
    make = ["make", "--silent", "image", f"IMAGE={tag}", f"IMAGE_BUILD={builder()}"]
    subprocess.run([*make, f"IMAGE_ARGS={target and f'--target {target}'}"], cwd=ROOT, check=True, stdout=sys.stderr)


def builder() -> str:
    """Return the command by which ``make image`` builds on this machine.

    By buildah, whatever else is there: it needs no daemon, and is what the image is loaded from.
    """
    here = ["--build-arg", f"BASE_IMAGE={BASE}", "--network=host", *_isolation(), *_registries()]
    return " ".join(["buildah build --layers", *here])


def _build_base() -> None:
    """Make a small Debian of its packages: no registry of images is needed."""
    print("making a base image of Debian's packages", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="levada-base-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", tree, _MIRROR],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        container = _buildah("from", "scratch").strip()
        try:
            _buildah("add", "--quiet", container, str(tree), "/")
            _buildah("config", "--cmd", "/bin/bash", container)
            _buildah("commit", "--quiet", container, BASE)
        finally:
            _buildah("rm", container)


def _isolation() -> Iterator[str]:
    # runc, where crun is there too: that refuses cgroups of both versions at once.
    yield from ("--isolation", os.environ.get("BUILDAH_ISOLATION", "oci"), "--runtime", "runc")


def _registries() -> Iterator[str]:
    apt = Path("/etc/apt/apt.conf.d")
    for path in (*map(Path, _SETTINGS), *(apt.iterdir() if apt.is_dir() else ())):
        if path.is_file():
            yield from ("--volume", f"{path}:{path}:ro")
    if Path(_JAVA_TRUST).exists():
        # Not in its own place: the build installs a Java, with such a file.
        yield from ("--volume", f"{_JAVA_TRUST}:/run/trust.jks:ro")
        yield from ("--build-arg", "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/run/trust.jks")


def _built(tag: str) -> bool:
    done = subprocess.run(["buildah", "inspect", "--type", "image", tag], capture_output=True, check=False)
    return done.returncode == 0


def _buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def _on_node(layout: Layout, tag: str) -> bool:
    listed = enter(layout, "ctr", "-n", "k8s.io", "images", "list", "--quiet")
    return tag in subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def _import(layout: Layout) -> list[str]:
    return enter(layout, "ctr", "-n", "k8s.io", "images", "import", "-")


def _load(layout: Layout, tag: str) -> None:
    push = ["buildah", "push", "--quiet", tag, f"docker-archive:/dev/stdout:{tag}"]
    with subprocess.Popen(push, stdout=subprocess.PIPE) as pushing:
        subprocess.run(_import(layout), stdin=pushing.stdout, stdout=subprocess.DEVNULL, check=True)
    if pushing.returncode:
        raise RuntimeError(f"{' '.join(push)} ended with {pushing.returncode}")


def _write_archive(out: IO[bytes], tag: str, program: Path) -> None:
    """Write an image of one program, as `docker save` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, arcname=program.name)
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [diff]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
