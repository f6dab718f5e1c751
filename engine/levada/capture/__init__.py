"""WAL to segments to an acknowledged slot; and the same stream as change events for library users.

Applying what was captured is `levada.apply`'s work; capture never waits for it.
"""

from levada.capture.acks import Ack, AckTracker
from levada.capture.interface import CaptureProvisioning, Change, ChangeCapture, ChangeStream, Continuity, EmptyStream
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.capture.session import CaptureSettings
from levada.capture.wal import WalChangeCapture
from levada.capture.worker import CaptureWorker

__all__ = [
    "Ack",
    "AckTracker",
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
