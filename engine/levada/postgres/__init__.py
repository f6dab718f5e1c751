"""PostgreSQL as a source: connections, catalog, slots, publications, preflight checks, the replication stream.

Every SQL statement and socket for the source is in this package. `levada.pgoutput` decodes the stream's bytes.
"""
