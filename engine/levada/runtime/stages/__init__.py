"""The work that the supervisor starts, each kind with its threads: capture, copy, apply, resync, discovery, retention.

A stage reports by a message. Only the supervisor's thread acts on messages.
"""
