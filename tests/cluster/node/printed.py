"""Golden files of kubectl's output for a Pipeline in trouble.

``UPDATE_SNAPSHOTS=1`` writes the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.kubectl import eventually
from tests.cluster.node.place import Place

GOLDEN: Final = Path(__file__).parent / "golden"
COMMANDS: Final = (
    ("get", "pipelines"),
    ("get", "pipelines", "-o", "wide"),
    ("get", "tablesyncs", "-o", "wide"),
    ("describe", "pipeline", "shop"),
)
_PATTERNS: Final = (
    # The kubelet's message alternates between the cause and the pause after it.
    (r'Back-off pulling image "[^"]*": ErrImagePull: ', ""),
    # What differs from one run to the next. A number within a name, a count such as 5/6 and a port stay.
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID"),
    (r"\blocalhost/levada:[\w-]+", "IMAGE"),
    (r"\b[0-9A-F]+/[0-9A-F]{6,}\b", "LSN"),
    (r"\b\d+(\.\d+){3}\b", "ADDRESS"),
    (r"(?<![\w/:.-])-?\d+(\.\d+)?([kKMGTm]i?|B|[smhd](\d+[smh])?)?(?![\w/-])", "N"),
)
_TIMES: Final = re.compile(r"\s*[\w ]*(Time|At|Since):\s")


def prints(place: Place, name: str) -> None:
    """Wait until kubectl prints of the Pipeline what the golden file has."""
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(printed(place))
        return
    try:
        eventually(lambda: printed(place) == golden.read_text())
    except AssertionError:
        assert printed(place) == golden.read_text(), golden
        raise


def printed(place: Place) -> str:
    """Return what the commands print, without what differs from one run to the next."""
    parts = []
    for command in COMMANDS:
        text = place.kubectl(*command)
        if command[0] == "describe":
            text = "\n".join(_described(text))
        text = text.replace(place.slot_name, "SLOT").replace(place.kubectl.namespace, "NAMESPACE")
        for pattern, word in _PATTERNS:
            text = re.sub(pattern, word, text)
        lines = [re.sub(r"(?<=\S) {2,}", "   ", line).rstrip() for line in text.splitlines()]
        parts.append("\n".join([f"$ kubectl {' '.join(command)}", *lines]))
    return "\n\n".join(parts) + "\n"


def _described(text: str) -> Iterator[str]:
    """Yield the status without its times, and the warnings among the Events, each once."""
    _, _, status = text.partition("\nStatus:\n")
    status, _, events = status.partition("\nEvents:")
    yield "Status:"
    yield from (line for line in status.splitlines() if not _TIMES.match(line))
    yield "Events:"
    warnings = set()
    for line in events.splitlines():
        kind, *rest = re.split(r" {2,}", line.strip(), maxsplit=4)
        # The volume of the place may be bound a moment later than the pod is made.
        if kind == "Warning" and "unbound immediate PersistentVolumeClaims" not in line:
            reason, _, source, message = rest
            warnings.add(f"  {kind}   {reason}   {source}   {message}")
    yield from sorted(warnings)
