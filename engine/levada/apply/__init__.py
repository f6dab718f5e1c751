"""Segments to a destination, each table at its own pace.

Decides what the next batch of a table is; a destination decides how it is written.
"""
