"""Start and end the node: its namespaces, the link to this machine, the routes that keep its packets here."""

from __future__ import annotations

import contextlib
import ipaddress
import operator
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.cluster.bringup.keys import ensure_keys
from tests.cluster.bringup.layout import (
    CGROUP,
    DEVICE,
    HOST,
    LINK,
    NODE,
    NODE_NAME,
    PODS,
    SERVICES,
    SOURCES,
    Layout,
)
from tests.cluster.bringup.settings import write_settings
from tests.rigs.waiting import until

_CONTROLLERS: Final = Path("/sys/fs/cgroup")


def up(layout: Layout, give_first_image: Callable[[Layout], None]) -> None:
    """Start the cluster, unless it runs. Return when its node is ready."""
    if running(layout):
        return
    if Path(f"/sys/class/net/{DEVICE}").exists():
        # It goes with its node: that of another cache, whose addresses these would be too.
        raise RuntimeError(f"another cluster runs on this machine: there is a network device {DEVICE}")
    layout.init.unlink(missing_ok=True)
    _empty(layout)
    ensure_keys(layout)
    write_settings(layout)
    for folder in _cgroups():
        (folder / CGROUP).mkdir(exist_ok=True)
        _set_weight(folder / CGROUP)
    init = _start(layout)
    _link(init)
    kubectl = ["kubectl", "--kubeconfig", str(layout.kubeconfig())]
    _until(layout, lambda: _succeeds(layout, *kubectl, "get", "--raw=/readyz"), "the API server answers")
    _until(layout, lambda: _succeeds(layout, "ctr", "version", inside=True), "containerd answers")
    give_first_image(layout)
    ready = [*kubectl, "wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=1s"]
    _until(layout, lambda: _succeeds(layout, *ready), "the node is ready")
    account = [*kubectl, "-n", "default", "get", "serviceaccount", "default"]
    _until(layout, lambda: _succeeds(layout, *account), "namespaces have accounts")


def down(layout: Layout) -> None:
    """Stop the cluster, and remove all that it made but images. It is no error if there is none."""
    if (init := _first_process(layout)) is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    left = (Path(f"/proc/{init}"), Path(f"/sys/class/net/{DEVICE}"))
    until(lambda: [path for path in left if path.exists()], operator.not_)
    layout.init.unlink(missing_ok=True)
    for folder in _cgroups():
        _remove_cgroup(folder / CGROUP)


def running(layout: Layout) -> bool:
    """Return True if the node's first process runs."""
    return _first_process(layout) is not None


def enter(layout: Layout, *command: str | Path) -> list[str]:
    """Return the command line that runs a command on the node."""
    init = _first_process(layout)
    if init is None:
        raise RuntimeError("the cluster is not up")
    return ["nsenter", f"--target={init}", "--mount", "--net", "--pid", "--uts", "--ipc", "--", *map(str, command)]


def kill(layout: Layout, process: str) -> None:
    """Kill a process of the node (a name of `init.sh`: kubelet, apiserver...) without warning. It is started again."""
    subprocess.run(enter(layout, "sh", "-c", f"kill -9 $(cat /run/{process}.pid)"), check=True)


def _first_process(layout: Layout) -> int | None:
    try:
        number = int(layout.init.read_text())
        environment = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    # The number may be another process's by now. The cluster may be that of another checkout with the same cache.
    return number if b"/bringup/init.sh" in environment else None


def _empty(layout: Layout) -> None:
    """Remove what the last cluster left, but its keys and images."""
    for folder in (layout.state / "kubelet", layout.logs, layout.volumes):
        # Only files of this disk: a mount that is still there has data of others.
        if folder.exists():
            subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)
    for folder in (layout.state / "kubelet", layout.logs, layout.volumes, layout.state / "containerd"):
        folder.mkdir(parents=True, exist_ok=True)
    layout.volumes.chmod(0o755)


def _start(layout: Layout) -> int:
    environment = {
        "STATE": layout.state,
        "LOGS": layout.logs,
        "KEYS": layout.keys,
        "PROGRAMS": layout.programs,
        "NODE": NODE,
        "NODE_NAME": NODE_NAME,
        "SERVICES": SERVICES,
        "PODS": PODS,
    }
    unshare = ["unshare", "--pid", "--net", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    with (layout.logs / "init.log").open("wb") as log:
        parent = subprocess.Popen(
            [*unshare, SOURCES / "init.sh"],
            env={"PATH": os.environ["PATH"], "HOME": "/root"} | {k: str(v) for k, v in environment.items()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        _until(layout, lambda: children.read_text().strip(), "the node's first process is there")
        init = int(children.read_text())
        layout.init.write_text(str(init))
        _until(layout, lambda: running(layout), "the node's first process is itself")
    except BaseException:
        parent.kill()
        raise
    return init


def _link(init: int) -> None:
    """Join this machine and the node, and let no packet for them leave by another way."""
    _ip("link", "add", DEVICE, "type", "veth", "peer", "name", "node-host", "netns", str(init))
    for network in (PODS, SERVICES, LINK):
        _ip("route", "replace", "blackhole", str(ipaddress.ip_network(network)), "metric", "9999")
    _ip("address", "add", f"{HOST}/30", "dev", DEVICE)
    _ip("link", "set", DEVICE, "up")
    _ip("route", "replace", PODS, "via", NODE, "dev", DEVICE)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _cgroups() -> list[Path]:
    """Return the roots of the controllers: one in version 2, one for each in version 1."""
    if (_CONTROLLERS / "cgroup.controllers").exists():
        return [_CONTROLLERS]
    return [p for p in _CONTROLLERS.iterdir() if p.is_dir() and not p.is_symlink() and (p / "cgroup.procs").exists()]


def _set_weight(folder: Path) -> None:
    """Give all pods together the weight of one busy process per processor. The default is that of one in all."""
    for name, of_one, most in (("cpu.shares", 1024, 262144), ("cpu.weight", 100, 10000)):
        if (folder / name).exists():
            (folder / name).write_text(str(min(of_one * (os.cpu_count() or 1), most)))


def _remove_cgroup(folder: Path) -> None:
    """Remove a cgroup with those in it. The kernel may need a moment after their last process."""

    def remaining() -> list[str]:
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return [path for path, _, _ in os.walk(folder)]

    until(remaining, operator.not_)


def _succeeds(layout: Layout, *command: str | Path, inside: bool = False) -> bool:
    line = enter(layout, *command) if inside else list(map(str, command))
    try:
        done = subprocess.run(  # paced: the next look asks again
            line, env=layout.environment(), capture_output=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _until(layout: Layout, check: Callable[[], object], what: str) -> None:
    """Wait for a step of the start. Fail with the last lines of each log."""

    def report() -> str:
        logs = sorted(layout.logs.glob("*.log"))
        ends = ("\n".join(log.read_text(errors="replace").splitlines()[-5:]) for log in logs)
        return f"waited until {what}\n" + "\n".join(f"--- {log}\n{end}" for log, end in zip(logs, ends, strict=True))

    until(check, report=report, limit_s=600)
