"""PostgreSQL as a source: connections, catalog, slots, publications, preflight, the replication stream.

SQL and sockets live here and in no other package of the source's side; what the stream's bytes mean is
`levada.pgoutput`'s work.
"""
