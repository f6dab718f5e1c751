"""The staged log: immutable slices of the WAL as Parquet files, one manifest each.

Writing, listing, reading and removing segments, on any file system. What fills them is `levada.capture`'s work, what
empties them `levada.apply`'s.
"""
