"""PostgreSQL's wire formats (pgoutput messages, binary COPY) to Arrow columns, whole columns at once.

Pure: bytes in, `pyarrow` out. No connection, no file, no clock; what a type's OID means is told by the caller.
"""
