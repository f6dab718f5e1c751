"""The marks of threads: a thread runs for whatever the code that made it ran for."""

from __future__ import annotations

import queue

from levada.threads import MarkedPool, marked_thread, running_for, runs_for


def test_threads_have_the_marks_of_the_code_that_made_them() -> None:
    """Also if they are started later, by a thread of a thread, and for two owners. Other threads have none."""
    one, other = object(), object()
    answers: queue.SimpleQueue[tuple[bool, bool]] = queue.SimpleQueue()

    def answer() -> None:
        answers.put((runs_for(one), runs_for(other)))

    def nested() -> None:
        with running_for(other):
            marked_thread(answer, "inner").start()

    with running_for(one):
        made = marked_thread(answer, "outer")
        pool = MarkedPool(1, "pool")
        deep = marked_thread(nested, "middle")
    assert not runs_for(one)
    made.start()
    assert answers.get() == (True, False)
    deep.start()
    assert answers.get() == (True, True)
    with pool:
        pool.submit(answer).result()
    assert answers.get() == (True, False)
    marked_thread(answer, "outside").start()
    assert answers.get() == (False, False)
