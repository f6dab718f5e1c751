"""Reads the WAL into staged segments and acknowledges the slot.

Offers the same stream as change events to library users. `levada.apply` applies the segments. Capture never waits for
it.
"""

from levada.capture.acks import Ack, AckTracker
from levada.capture.asynchronous import AsyncBatches, AsyncChanges
from levada.capture.host import CaptureHost
from levada.capture.interface import CaptureProvisioning, Change, ChangeCapture, ChangeStream, Continuity, EmptyStream
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.capture.session import CaptureSettings
from levada.capture.wal import WalChangeCapture
from levada.capture.worker import CaptureWorker

__all__ = [
    "Ack",
    "AckTracker",
    "AsyncBatches",
    "AsyncChanges",
    "CaptureHost",
    "CapturePosition",
    "CaptureProvisioning",
    "CaptureSettings",
    "CaptureWorker",
    "Change",
    "ChangeCapture",
    "ChangeStream",
    "Continuity",
    "EmptyStream",
    "TableResolver",
    "WalChangeCapture",
]
