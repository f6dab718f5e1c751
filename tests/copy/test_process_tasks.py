"""Worker processes: their logs, signals, and ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.rigs.process_tasks import alive, run
from tests.rigs.waiting import LIMIT_S, until

from levada.copy.process_tasks import ProcessTasks
from levada.copy.tasks import run_tasks
from levada.errors import NeedsOperator, Transient


@pytest.fixture
def own() -> Iterator[ProcessTasks]:
    """A runner for one test, with the process from which it forks. It keeps no idle workers."""
    runner = ProcessTasks(idle_s=0)
    yield runner
    runner.close()


def parent() -> int:
    """Return the process from which this worker was forked."""
    return os.getppid()


@pytest.mark.usefixtures("own_process")
def test_log_records_reach_the_engine(processes: ProcessTasks, caplog: pytest.LogCaptureFixture) -> None:
    """A task's log is the engine's, with its level, its logger and its traceback, and no less than the engine's."""

    def log() -> None:
        logger = logging.getLogger("levada.some.destination")
        logger.debug("too detailed")
        logger.warning("%d rows were odd", 3)
        try:
            raise ValueError("seen")
        except ValueError:
            logging.getLogger("of.the.user").exception("failed")

    with caplog.at_level(logging.INFO):
        run(processes, log)
    names = ("levada.some.destination", "of.the.user")
    found = [r for r in caplog.records if r.name in names]
    records = [(r.name, r.levelname, r.getMessage().partition("\n")[0]) for r in found]
    assert records == [("levada.some.destination", "WARNING", "3 rows were odd"), ("of.the.user", "ERROR", "failed")]
    assert "ValueError: seen" in caplog.text


@pytest.mark.nightly
def test_many_log_records_and_threads_block_nothing(processes: ProcessTasks, caplog: pytest.LogCaptureFixture) -> None:
    """Threads that log while a task returns neither mix their messages nor hold it up."""

    def log() -> int:
        def body() -> None:
            for number in range(2000):
                logging.getLogger("levada.threads").warning("%s", "x" * (number % 1000))

        threads = [threading.Thread(target=body) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 7

    assert run(processes, log, log) == [7, 7]
    assert sum(r.name == "levada.threads" for r in caplog.records) == 12_000


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_what_a_task_prints_is_no_output_of_the_engine(tmp_path: Path) -> None:
    """Standard output may have a format, so a task's goes to standard error, complete, also if the task then exits."""
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.rigs.process_tasks import run\n"
        "from levada.copy.process_tasks import ProcessTasks\n"
        "from levada.errors import Transient\n"
        "def task():\n"
        "    print('printed')\n"
        "    raise SystemExit(3)\n"
        "try:\n"
        "    run(ProcessTasks(), task)\n"
        "except Transient as error:\n"
        "    print('refused', 'exit code 1' in str(error))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "refused True\n", done.stderr
    assert done.stderr.count("printed") == 3


@pytest.mark.usefixtures("own_process")
def test_the_death_of_the_server_is_transient(own: ProcessTasks) -> None:
    """If the process from which workers are forked is killed, its workers end, and the tasks run from a new one."""
    server = run(own, parent)[0]
    killed = threading.Event()

    def hang_at_first(former: int = server) -> int:
        if os.getppid() == former:
            threading.Event().wait()
        return os.getpid()

    def kill() -> None:
        children = until(lambda: workers_of(server))
        os.kill(server, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in children))
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    assert len(run(own, hang_at_first)) == 1
    thread.join(LIMIT_S)
    assert killed.is_set()
    assert run(own, parent)[0] != server


def workers_of(server: int) -> list[int]:
    """Return the processes whose parent is ``server``."""
    try:
        return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.mark.usefixtures("own_process")
def test_the_exit_status_is_in_the_message(own: ProcessTasks) -> None:
    """The end of a worker is readable: a signal has its number, and an exit its code."""
    for end, words in (
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "exit code -11"),
        (lambda: os._exit(9), "code 9"),
    ):
        with pytest.raises(Transient) as raised:
            run(own, end)
        assert raised.value.code == "worker_process_ended"
        assert words in raised.value.message


ENGINE = """
import os, signal, sys, threading, time
from pathlib import Path
from levada.copy.process_tasks import ProcessTasks
from levada.copy.tasks import run_tasks

# A shell starts its background jobs with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def hang(folder=sys.argv[1]):
    Path(folder, f"{os.getpid()}").touch()
    Path(folder, f"{os.getppid()}").touch()
    # A task that does not listen: no signal's handler of Python would run.
    threading.Event().wait()

run_tasks(ProcessTasks(), [hang] * 3, "t", parallel=3, cancelled=threading.Event())
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_engine(number: signal.Signals, tmp_path: Path) -> None:
    """However the engine ends, also by kill -9, its workers and the process that forked them end."""
    folder = tmp_path / "pids"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(ENGINE)
    with subprocess.Popen([sys.executable, script, folder], stderr=subprocess.DEVNULL) as engine:
        until(lambda: len(list(folder.iterdir())) >= 4, alive=lambda: engine.poll() is None)
        engine.send_signal(number)
    pids = [int(file.name) for file in folder.iterdir()]
    until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_a_signal_to_the_engines_group_spares_the_workers(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the engine only, which decides what becomes of its tasks."""
    folder = str(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from tests.rigs.process_tasks import run\n"
        "from levada.copy.process_tasks import ProcessTasks\n"
        "signal.signal(signal.SIGINT, lambda *_: Path(sys.argv[1], 'handled').touch())\n"
        "def task(folder=sys.argv[1]):\n"
        "    Path(folder, 'begun').touch()\n"
        "    while not Path(folder, 'handled').exists():\n"
        "        time.sleep(0.01)\n"
        "    return 'went on'\n"
        "print(run(ProcessTasks(), task)[0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(script), folder]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as engine:
        until((tmp_path / "begun").exists, alive=lambda: engine.poll() is None)
        os.killpg(engine.pid, signal.SIGINT)
        assert engine.communicate()[0] == "went on\n"


@pytest.mark.usefixtures("own_process")
def test_no_tasks_after_the_end(own: ProcessTasks) -> None:
    """Closing ends the processes. A task after it is refused, and closing again does nothing."""
    server = run(own, parent)[0]
    own.close()
    own.close()
    assert not alive(server)
    with pytest.raises(Transient) as raised:
        run(own, parent)
    assert raised.value.code == "worker_process_ended"


@pytest.mark.usefixtures("own_process")
def test_arguments_and_environment_have_no_task(own: ProcessTasks) -> None:
    """Every user of the machine reads command lines, so tasks and their parameters are in none."""
    secret = "not-for-others"
    found = run(own, lambda: (secret, Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/environ").read_bytes()))
    assert found[0][0] == secret
    assert all(secret.encode() not in text for text in found[0][1:])


def open_things() -> tuple[int, int]:
    """Return the numbers of open descriptors and of threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_nothing_is_left_open(own: ProcessTasks) -> None:
    """Calls leave no descriptor, thread or process behind."""
    run(own, parent)
    server = run(own, parent)[0]
    before = open_things()
    for _ in range(5):
        run(own, parent, parent, parent)
        with pytest.raises(Transient):
            run(own, lambda: os._exit(1))
    # Threads of other tests may end meanwhile.
    until(open_things, lambda now: all(n <= b for n, b in zip(now, before, strict=True)))
    until(lambda: not workers_of(server))


@pytest.mark.usefixtures("own_process")
def test_all_copies_together_have_a_limit(tmp_path: Path) -> None:
    """Groups at the same time share the limit, each has one worker in any case, and every task runs once."""
    runner, most, ended = ProcessTasks(limit=3), [0], threading.Event()

    def count(name: str, number: int) -> tuple[str, int]:
        mark = tmp_path / f"{name}-{number}"
        mark.touch()
        time.sleep(0.05)
        mark.unlink()
        return name, number

    def watch() -> None:
        while not ended.wait(0.005):
            most[0] = max(most[0], len(list(tmp_path.iterdir())))

    def copy(name: str, results: dict[str, list[tuple[str, int]]]) -> None:
        tasks = [partial(count, name, i) for i in range(12)]
        results[name] = run_tasks(runner, tasks, name, parallel=4, cancelled=threading.Event())

    try:
        for names in (["alone"], ["a", "b", "c", "d", "e"]):
            results: dict[str, list[tuple[str, int]]] = {}
            most[0] = 0
            ended.clear()
            threads = [threading.Thread(target=copy, args=(name, results)) for name in names]
            watcher = threading.Thread(target=watch)
            for thread in (watcher, *threads):
                thread.start()
            for thread in threads:
                thread.join()
            ended.set()
            watcher.join()
            assert results == {name: [(name, i) for i in range(12)] for name in names}
            assert most[0] <= 3 + len(names) - 1
    finally:
        runner.close()


@pytest.mark.usefixtures("own_process")
def test_a_copy_that_waits_for_a_worker_is_cancelled() -> None:
    """Threads that wait for their turn end with their group: an error of its first task is the group's error."""
    runner = ProcessTasks(limit=1)

    def fail() -> None:
        time.sleep(0.3)
        raise NeedsOperator("test", "as intended")

    try:
        with pytest.raises(NeedsOperator, match="as intended"):
            run_tasks(runner, [fail, time.time, time.time], "t", parallel=3, cancelled=threading.Event())
    finally:
        runner.close()


@pytest.mark.usefixtures("own_process")
def test_the_next_task_gets_the_worker_of_the_last() -> None:
    """Starting one for each of a thousand small tables would take longer than their rows."""
    runner = ProcessTasks(idle_s=3600)
    try:
        [first] = run(runner, os.getpid)
        assert run(runner, os.getpid) == [first]
        with pytest.raises(NeedsOperator):
            run(runner, refuse)
        assert run(runner, os.getpid) == [first]
        os.kill(first, signal.SIGKILL)
        until(lambda: not alive(first))
        [second] = until(lambda: run_or_none(runner))
        assert second != first
    finally:
        runner.close()


def refuse() -> None:
    """Fail as a task that a person must look at."""
    raise NeedsOperator("refused", "refused")


def run_or_none(runner: ProcessTasks) -> list[int] | None:
    """Return the worker's PID, or None if its end was not noticed before it got the task."""
    try:
        return run(runner, os.getpid)
    except Transient:
        return None


@pytest.mark.usefixtures("own_process")
def test_an_idle_worker_is_ended() -> None:
    """An engine that copies nothing has no workers. `ProcessTasks.check` is called all the time."""
    runner = ProcessTasks(idle_s=0.001)
    try:
        server = run(runner, parent)[0]
        time.sleep(0.002)
        runner.check()
        until(lambda: not workers_of(server))
    finally:
        runner.close()
