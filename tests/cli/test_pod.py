"""The check before a driver starts in a pod, and the driver's own starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.rigs.command_line import levada, log_in_as, manifest_of
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S

from levada.cli.exit_codes import Exit
from levada.postgres.problems import Problem, Severity
from levada.runtime.host.pod import TERMINATION_LOG, PodWaits, Starts, check_until_ok

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


def test_each_result_ends_the_container_once(tmp_path: Path, secret: Path) -> None:
    """A result that the status has is not reported again. A corrected Secret is tried without another start."""
    log, checks = tmp_path / "termination-log", []

    def check() -> tuple[Problem, ...]:
        checks.append((secret / "password").read_text())
        if checks[-1] == "right":
            return (WARNING,)
        if len(checks) == 4:
            (secret / "password").write_text("right")
        return (LOGIN, WARNING) if len(checks) == 1 else (LOGIN, STORE, WARNING)

    def start() -> tuple[Problem, ...]:
        return check_until_ok(check, log, [secret], tmp_path, PodWaits(poll_s=0.01, first_s=0.05))

    assert start() == (LOGIN, WARNING)
    assert log.read_text() == "error: no login [source_auth_failed]\n  hint: check the password\n"
    assert start() == (LOGIN, STORE, WARNING)
    assert "store_privilege_missing" in log.read_text()
    assert start() == (WARNING,)
    assert checks == ["wrong"] * 4 + ["right"]


def test_message_fits_into_the_pods_status(tmp_path: Path) -> None:
    """Kubernetes takes 4096 bytes. Only whole problems are written."""
    many = tuple(Problem(Severity.ERROR, "c", "é" * 900, "h") for _ in range(5))
    log = tmp_path / "log"
    check_until_ok(lambda: many, log, [], tmp_path)
    assert log.read_bytes().count(b"error: ") == 2


def test_each_refused_start_ends_the_container_once(tmp_path: Path, secret: Path) -> None:
    """A refusal ends the container. The same one at its next start waits, and a corrected Secret is tried there."""

    def starts(stay_s: float = 600.0) -> Starts:
        found = Starts([secret], tmp_path, lambda: False, PodWaits(poll_s=0.01, stay_s=stay_s))
        found.begin()
        return found

    assert not starts().may_try_again("no login")
    second = starts()
    (secret / "password").write_text("right")
    assert second.may_try_again("no login")
    assert not second.may_try_again("no rights"), "another refusal is not in the status yet"
    assert not starts().may_try_again("no login")
    assert not starts(stay_s=0.0).may_try_again("no login"), "an old failure would not count as today's"


def test_failure_between_two_refusals_is_not_forgotten(tmp_path: Path) -> None:
    """After an end for another reason the refusal is new to the status."""
    assert not Starts([], tmp_path, lambda: False).may_try_again("no login")
    Starts([], tmp_path, lambda: False)
    assert not Starts([], tmp_path, lambda: False).may_try_again("no login")


def test_driver_in_a_pod_tries_a_changed_secret(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`levada run` that is refused as before stays, and reports what the next content of the Secret leads to."""
    monkeypatch.setenv(TERMINATION_LOG, str(tmp_path / "termination-log"))
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(manifest_of(db)))
    command = ("run", tmp_path / "pipeline.yaml", "--secrets", tmp_path / "secrets", "--work-dir", tmp_path / "work")
    log_in_as(tmp_path, "nobody_one")
    first = levada(*command)
    assert (first.exit_code, "nobody_one" in first.output) == (Exit.PREFLIGHT, True)
    waits = threading.Event()
    monkeypatch.setattr(Starts, "may_try_again", noted(Starts.may_try_again, waits))

    def correct() -> None:
        assert waits.wait(LIMIT_S)
        log_in_as(tmp_path, "nobody_two")

    corrector = threading.Thread(target=correct)
    corrector.start()
    second = levada(*command)
    corrector.join()
    assert second.exit_code == Exit.PREFLIGHT
    assert "nobody_two" in second.output


def test_a_check_by_kubectl_exec_ends(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver's container it reports its problems each time, and leaves the message of the container alone."""
    log, manifest = tmp_path / "termination-log", tmp_path / "pipeline.yaml"
    manifest.write_text(yaml.safe_dump(manifest_of(db)))
    log_in_as(tmp_path, "nobody_one")
    for name, path in {
        TERMINATION_LOG: log,
        "LEVADA_MANIFEST": manifest,
        "LEVADA_SECRETS": tmp_path / "secrets",
        "LEVADA_WORK_DIR": tmp_path / "work",
    }.items():
        monkeypatch.setenv(name, str(path))
    for _ in range(2):
        checked = levada("check")
        assert (checked.exit_code, "nobody_one" in checked.output) == (Exit.PREFLIGHT, True)
    assert not log.exists()


def noted(method: Callable[[Starts, str], bool], called: threading.Event) -> Callable[[Starts, str], bool]:
    """Return the method, which sets the event when it is called."""

    def call(starts: Starts, why: str) -> bool:
        called.set()
        return method(starts, why)

    return call
