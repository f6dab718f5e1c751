"""Applies staged segments to a destination, on a schedule for each table.

This package chooses the next batch of a table. The destination decides how to write it.
"""
