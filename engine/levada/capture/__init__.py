"""WAL to segments to an acknowledged slot; and the same stream as change events for library users.

Applying what was captured is `levada.apply`'s work; capture never waits for it.
"""
