"""The folder of manifests with their expected problems."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
