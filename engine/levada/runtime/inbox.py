"""The supervisor's inbox. Any thread sends messages to it, and the supervisor's thread handles them.

A message may be a question, which its sender waits for. Each stage registers the handlers of its messages.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
M = TypeVar("M", bound="Message")
A = TypeVar("A", bound="Ask[Any]")

_POLL_S: Final = 0.1


class Message:
    """A message to the supervisor. Its objects are frozen."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Ask(Message, Generic[T]):
    """A message whose handler answers with a value or an error, now or later."""

    answer: Future[T] = field(default_factory=Future, kw_only=True, compare=False, repr=False)

    def wait(self, check: Callable[[], object], every_s: float = _POLL_S) -> T:
        """Return the answer, or raise its error.

        ``check`` is called every ``every_s`` seconds. It raises to end the wait, because an inbox gives no answer that
        is no longer read.
        """
        while not wait([self.answer], every_s).done:
            check()
        return self.answer.result()


@dataclass(frozen=True, slots=True)
class Recorded(Ask[None]):
    """A message that is answered once all of its handlers have returned, so that a restart knows what it reports."""


class Inbox:
    """The messages that wait, and the handlers of each kind of message."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._handlers: dict[type[Message], list[Callable[[Any], object]]] = {}

    def put(self, message: Message) -> None:
        """Send a message. From any thread, without waiting."""
        self._messages.put(message)

    def ask(self, question: A) -> A:
        """Send a question and return it, for a caller that waits for its answer. From any thread."""
        self._messages.put(question)
        return question

    def on(self, kind: type[M], handle: Callable[[M], object]) -> None:
        """Register a handler, which runs in the supervisor's thread, after those that were registered before."""
        self._handlers.setdefault(kind, []).append(handle)

    def handle(self, timeout_s: float) -> bool:
        """Handle all messages, after a wait for the first one. Return False if there was none."""
        handled = False
        try:
            self._dispatch(self._messages.get(timeout=timeout_s) if timeout_s else self._messages.get_nowait())
            handled = True
            while True:
                self._dispatch(self._messages.get_nowait())
        except queue.Empty:
            return handled

    def take(self, kind: type[M]) -> list[M]:
        """Return the messages of one kind that wait, and drop all others."""
        taken = []
        while not self._messages.empty():
            message = self._messages.get()
            if isinstance(message, kind):
                taken.append(message)
        return taken

    def _dispatch(self, message: Message) -> None:
        for handle in self._handlers[type(message)]:
            handle(message)
        if isinstance(message, Recorded):
            message.answer.set_result(None)
