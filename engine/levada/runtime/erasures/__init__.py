"""The erasure of keys from one table, while nothing is applied to it.

The files at a destination are its own: see `levada.destinations.erasure`. The HTTP API is in `levada.runtime.report`.
"""
