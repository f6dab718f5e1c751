"""The copy of one table, in this process or in a dedicated process.

`levada.runtime.stages` decides when a table is copied.
"""
