"""Where a pipeline's decisions live: phases, schema versions, epochs, progress.

What is *applied* is not decided here but by the destination's own commits. Implementations: memory, PostgreSQL.
"""
