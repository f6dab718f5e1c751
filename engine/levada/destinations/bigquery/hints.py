"""Hints that several errors of BigQuery share."""

from __future__ import annotations

from typing import Final

UNAVAILABLE: Final = "if this persists, check the network and the state of BigQuery: https://status.cloud.google.com"
