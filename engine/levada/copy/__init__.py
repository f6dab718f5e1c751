"""The initial copy of a table: plans ranges, and reads their rows under one exported snapshot for a destination.

An interrupted copy of a new table is resumed: `levada.copy.kept` has the rules, and `levada.copy.resumable` the rows.

The destination writes the rows. `levada.runtime` decides when to copy a table, and handles failures.
"""
