"""The copy of one table: made by this process, or ordered from a process of its own.

Which table is copied when is decided in `levada.runtime.stages`.
"""
