"""Random histories of statements on a real server under a real engine, with oracles: ``python -m tests.histories``.

A history is generated on a twin database without Levada, and played again on the source of a running engine. Many
histories share one engine, each in a schema of its own. A history that fails is shortened to few statements.
"""
