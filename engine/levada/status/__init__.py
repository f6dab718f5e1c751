"""The status document of a pipeline: what the engine writes, and the command line and the operator read.

It is the JSON of ``/v1/progress``. `History` is that of ``/v1/history``.
`levada.status.schema` prints their JSON schemas. Nothing here does I/O.
"""

from levada.status.commands import runnable
from levada.status.document import utc_text
from levada.status.history import HISTORY_VERSION, History
from levada.status.names import (
    CatchUpState,
    CutPhase,
    GuardMeasure,
    GuardPolicy,
    PipelineState,
    ResyncStep,
    RetryPolicy,
    TablePhase,
)
from levada.status.progress import (
    PROGRESS_VERSION,
    CaptureProgress,
    CatchUpProgress,
    CopyProgress,
    CutProgress,
    CutsProgress,
    ErrorProgress,
    GuardAction,
    GuardProgress,
    ManifestProgress,
    MemoryProgress,
    PassedLimit,
    Progress,
    ProofProgress,
    PublicationProgress,
    ResyncProgress,
    SlotProgress,
    StagingProgress,
    StoreProgress,
    TableProgress,
    VerifiedProgress,
    WaitingField,
)
from levada.status.reading import read_progress, read_slot

__all__ = [
    "HISTORY_VERSION",
    "PROGRESS_VERSION",
    "CaptureProgress",
    "CatchUpProgress",
    "CatchUpState",
    "CopyProgress",
    "CutPhase",
    "CutProgress",
    "CutsProgress",
    "ErrorProgress",
    "GuardAction",
    "GuardMeasure",
    "GuardPolicy",
    "GuardProgress",
    "History",
    "ManifestProgress",
    "MemoryProgress",
    "PassedLimit",
    "PipelineState",
    "Progress",
    "ProofProgress",
    "PublicationProgress",
    "ResyncProgress",
    "ResyncStep",
    "RetryPolicy",
    "SlotProgress",
    "StagingProgress",
    "StoreProgress",
    "TablePhase",
    "TableProgress",
    "VerifiedProgress",
    "WaitingField",
    "read_progress",
    "read_slot",
    "runnable",
    "utc_text",
]
