"""The initial copy of a table: plans ranges, and reads their rows under one exported snapshot for a destination.

The destination writes the rows. `levada.runtime` decides when to copy a table, and handles failures.
"""
