"""Starts of the operator's process that fail: one plain error, no traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.ports import free_port

from levada.errors import NeedsOperator
from levada_operator.app.config import read_config
from levada_operator.app.credentials import read_credentials

KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "SERVER"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has no kubeconfig."""
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return kept | {"HOME": str(tmp_path), "LEVADA_ADDRESS": "127.0.0.1", "LEVADA_PORT": "0"}


def operator(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the operator until it ends."""
    command = [sys.executable, "-m", "levada_operator"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_an_operator_outside_of_a_cluster_ends_with_one_error(environment: dict[str, str]) -> None:
    """It names the error's code and what to set, as a line of text, or as a JSON record where logs are JSON."""
    ended = operator(environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: the operator runs outside of a cluster, and there is no kubeconfig [operator_outside_cluster]\n"
        "  hint: set KUBECONFIG to the path of one\n"
    )
    ended = operator(environment | {"LEVADA_LOG_FORMAT": "json"})
    record = json.loads(ended.stderr)
    assert (ended.returncode, record["level"], record["code"]) == (1, "ERROR", "operator_outside_cluster")
    assert record["hint"] == "set KUBECONFIG to the path of one"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("a: [", "it is not YAML"),
        (b"\xff\xfe\x00", "it is not YAML"),
        ("- a\n", "it is not a kubeconfig"),
        ("{}", "Current context is not set"),
        (KUBECONFIG.replace("current-context: c", "current-context: d"), "it has no entry 'd'"),
        (KUBECONFIG.replace("SERVER", "").replace('server: ""', "insecure: x"), "it is not a kubeconfig"),
        (
            KUBECONFIG.replace("token: t", "client-certificate-data: eA==, client-key-data: eA=="),
            "a certificate or a key",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(
    text: str | bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which file it is, and what is wrong with it, without its content."""
    path = tmp_path / "config"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(NeedsOperator) as refused:
        read_credentials()
    assert refused.value.code == "kubeconfig_invalid"
    assert refused.value.message.startswith(f"the kubeconfig {path} cannot be used: ")
    assert reason in refused.value.message
    assert str(path) in refused.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEVADA_PORT", "http"),
        ("LEVADA_LEASE_SECONDS", "0"),
        ("LEVADA_STAGING_SIZE", "much"),
        ("LEVADA_STAGING_VOLUMES", "Sometimes"),
        ("LEVADA_SWEEP_SECONDS", ""),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str) -> None:
    """The error has the variable, its value and its default."""
    with pytest.raises(NeedsOperator) as refused:
        read_config({name: value})
    assert refused.value.code == "setting_invalid"
    assert refused.value.message.startswith(f"the environment variable {name} is {value!r}: ")


@pytest.mark.usefixtures("own_process")
def test_a_port_in_use_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    """The operator ends before it asks for the Lease, and names the variable that sets the port."""
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.replace("SERVER", "http://127.0.0.1:1"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = operator(environment | {"KUBECONFIG": str(path), "LEVADA_PORT": str(taken.getsockname()[1])})
    assert ended.returncode == 1
    assert "[port_taken]" in ended.stderr
    assert "LEVADA_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("own_process")
def test_an_api_server_that_does_not_answer_is_waited_for(environment: dict[str, str], tmp_path: Path) -> None:
    """The operator reports its address and the reason, once for all attempts, and goes on until it is back."""
    path, log, port = tmp_path / "config", tmp_path / "operator.log", free_port()
    path.write_text(KUBECONFIG.replace("SERVER", f"https://127.0.0.1:{port}"))
    command = [sys.executable, "-m", "levada_operator"]
    settings = {"KUBECONFIG": str(path), "LEVADA_LEASE_SECONDS": "1"}
    with log.open("w") as out, subprocess.Popen(command, env=environment | settings, stderr=out) as process:
        until(log.read_text, lambda text: "no answer" in text and text.endswith("\n"))
        (line,) = log.read_text().splitlines()
        where = f"https://127.0.0.1:{port}"
        assert line.endswith(
            f"Lease default/levada-operator: no answer from the API server at {where}: Connection refused"
        )
        with socket.create_server(("127.0.0.1", port)) as back:
            back.settimeout(LIMIT_S)
            back.accept()[0].close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
