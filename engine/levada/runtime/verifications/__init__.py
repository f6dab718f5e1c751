"""Verifications of tables while the pipeline runs. They bring a table to one LSN and compare it there.

The comparison itself is in `levada.verify`, which also explains why both sides show the same moment.
"""
