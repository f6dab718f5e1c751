"""The supervisor's inbox: the order of handlers, and the end of a wait for an answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from levada.errors import Transient
from levada.runtime.inbox import Ask, Inbox, Message, Recorded


@dataclass(frozen=True, slots=True)
class Note(Message):
    """A message without an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Saved(Recorded):
    """A message that is answered once it was handled."""


@dataclass(frozen=True, slots=True)
class Sum(Ask[int]):
    """A question."""

    numbers: tuple[int, ...]


def ended() -> None:
    """Raise, as the check of a caller does once the pipeline has ended."""
    raise Transient("stopping", "the pipeline is stopping")


def test_all_messages_are_handled_in_their_order() -> None:
    """Those that wait are handled in one call, and each handler of a message gets it in the order of registration."""
    inbox, seen = Inbox(), list[str]()
    inbox.on(Note, lambda note: seen.append(f"first {note.text}"))
    inbox.on(Note, lambda note: seen.append(f"second {note.text}"))
    assert not inbox.handle(0)
    inbox.put(Note("a"))
    inbox.put(Note("b"))
    assert inbox.handle(0)
    assert seen == ["first a", "second a", "first b", "second b"]


def test_a_question_is_answered_now_or_later() -> None:
    """A handler may keep a question. The answer is its value or its error."""
    inbox, kept = Inbox(), list[Sum]()
    inbox.on(Sum, kept.append)
    later, refused = inbox.ask(Sum((1, 2))), inbox.ask(Sum(()))
    inbox.handle(0)
    assert not later.answer.done()
    kept[0].answer.set_result(sum(kept[0].numbers))
    kept[1].answer.set_exception(Transient("nothing", "there is nothing to add"))
    assert later.wait(ended) == 3
    with pytest.raises(Transient, match="nothing to add"):
        refused.wait(ended)


def test_a_recorded_message_is_answered_after_its_last_handler() -> None:
    """Before that, what it reports is not stored yet. A handler that fails ends the supervisor, and gives no answer."""
    inbox, done = Inbox(), list[bool]()
    saved = Saved()
    inbox.on(Saved, lambda message: done.append(message.answer.done()))
    inbox.on(Saved, lambda message: done.append(message.answer.done()))
    inbox.ask(saved)
    inbox.handle(0)
    assert (done, saved.answer.done()) == ([False, False], True)
    inbox.on(Saved, lambda message: ended())
    failed = inbox.ask(Saved())
    with pytest.raises(Transient):
        inbox.handle(0)
    with pytest.raises(Transient, match="stopping"):
        failed.wait(ended, every_s=0)


def test_a_question_after_the_end_does_not_wait() -> None:
    """An inbox that is no longer read gives no answer, so the check of the caller ends the wait."""
    with pytest.raises(Transient, match="stopping"):
        Inbox().ask(Sum((1,))).wait(ended, every_s=0)


def test_only_messages_of_one_kind_are_kept_for_another_inbox() -> None:
    """The others are about a state that is replaced."""
    inbox = Inbox()
    inbox.put(Note("a"))
    inbox.put(Saved())
    inbox.put(Note("b"))
    assert [note.text for note in inbox.take(Note)] == ["a", "b"]
    assert not inbox.handle(0)
