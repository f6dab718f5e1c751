"""The source before the stream: preflight, ownership, publication, slot, and the record of the verified server.

The stream itself is `levada.capture`.
"""
