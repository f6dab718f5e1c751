"""The initial copy: plan (pure), read under one exported snapshot, hand the rows to a destination.

How a destination writes them is its own; which table is copied when, and what a failure means, is for `levada.runtime`.
"""
