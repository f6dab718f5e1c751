"""PostgreSQL's wire formats (pgoutput messages, binary COPY), decoded to Arrow columns, one column at a time.

Pure: bytes in, `pyarrow` out. No connection, no file, no clock. The caller provides the meaning of type OIDs.
"""
