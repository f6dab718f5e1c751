"""The check before a driver starts in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.cli import pod
from levada.cli.exits import Exit
from levada.cli.pod import check_until_right
from levada.postgres.preflight import Problem, Severity

LOGIN = Problem(Severity.ERROR, "source_auth_failed", "no login", "check the password")
STORE = Problem(Severity.ERROR, "store_privilege_missing", "no rights", "GRANT")
WARNING = Problem(Severity.WARNING, "identity_missing", "a table is left out", "ALTER TABLE")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A mounted Secret."""
    folder = tmp_path / "secrets" / "shop-cdc"
    folder.mkdir(parents=True)
    (folder / "password").write_text("wrong")
    return folder


def test_each_result_ends_the_container_once(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that the status has is not reported again. A corrected Secret is tried without another start."""
    monkeypatch.setattr(pod, "_LOOK_S", 0.01)
    log, checks = tmp_path / "termination-log", []

    def check() -> tuple[Exit, tuple[Problem, ...]]:
        checks.append((secret / "password").read_text())
        if checks[-1] == "right":
            return Exit.OK, (WARNING,)
        if len(checks) == 4:
            (secret / "password").write_text("right")
        return Exit.PREFLIGHT, (LOGIN, WARNING) if len(checks) == 1 else (LOGIN, STORE, WARNING)

    def start() -> Exit:
        return check_until_right(check, log, [secret], tmp_path)

    assert start() is Exit.PREFLIGHT
    assert log.read_text() == "error: no login [source_auth_failed]\n  hint: check the password\n"
    assert start() is Exit.PREFLIGHT
    assert "store_privilege_missing" in log.read_text()
    monkeypatch.setattr(pod, "_AGAIN_S", 0.05)
    assert start() is Exit.OK
    assert checks == ["wrong"] * 4 + ["right"]


def test_message_fits_into_the_pods_status(tmp_path: Path) -> None:
    """Kubernetes takes 4096 bytes. Only whole problems are written."""
    many = tuple(Problem(Severity.ERROR, "c", "é" * 900, "h") for _ in range(5))
    log = tmp_path / "log"
    check_until_right(lambda: (Exit.PREFLIGHT, many), log, [], tmp_path)
    assert log.read_bytes().count(b"error: ") == 2
