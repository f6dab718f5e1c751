"""Messages of Kubernetes that reach users have nothing that only its developers can read."""

from __future__ import annotations

import pytest
from tests.operator.decisions import creation_failure

from levada_operator.observe.creation import read_creation_failure
from levada_operator.observe.plain_text import plain_text

INVALID = 'Pod "p" is invalid: spec.containers[0].resources: Invalid value'
MESSAGES = {
    "structure": (
        INVALID + ': core.ResourceRequirements{Limits:core.ResourceList(nil), Note:"a } brace"}: must be set',
        INVALID + ": must be set",
    ),
    "nested": (INVALID + ': []core.Toleration{core.Toleration{Key:"{"}}: no', INVALID + ": no"),
    "pointer": (INVALID + ": &core.X{A:1}: no", INVALID + ": no"),
    "without an end": (INVALID + ': core.X{A:"', INVALID),
    "taint": ("1 node(s) had untolerated taint {a: b}", "1 node(s) had untolerated taint {a: b}"),
    "plain": ("exceeded quota: q, requested: pods=1", "exceeded quota: q, requested: pods=1"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_has_no_go_structures(name: str) -> None:
    """Values that are printed as structures are left out. The field and the reason stay."""
    message, expected = MESSAGES[name]
    assert plain_text(message) == expected


def test_long_message_is_cut() -> None:
    """Anybody can write Events. A message of a megabyte of structures would take minutes."""
    assert plain_text(": core.X{}" * 100_000 + ": no") == ""
    assert len(plain_text("no " * 1_000_000)) <= 10_000


def test_combined_events_read_as_one() -> None:
    """Kubernetes combines many Events into one with a prefix, behind which the message is the same."""
    words = 'create Pod shop-driver-0 in StatefulSet shop-driver failed error: pods "p" is forbidden: no'
    event = {
        "metadata": {},
        "message": f"(combined from similar events): {words}",
        "lastTimestamp": "2026-01-31T12:00:00Z",
    }
    assert read_creation_failure(event).message == creation_failure('pods "p" is forbidden: no').message
