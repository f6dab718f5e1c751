"""The kinds of work that the supervisor starts: capture, copy, apply, resync, discovery, retention.

Each stage has threads of its own and reports to the supervisor by messages. Only the supervisor's thread changes the
state of tables.
"""
