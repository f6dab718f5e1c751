"""Preparation of the source: preflight, ownership, publication, slot, and the record of the verified server.

`levada.capture` reads the stream.
"""
