"""The state of the pipeline's tables: phases, requests, retries, resyncs, and the registry that owns them.

The rules are pure. Only the registry and the journals write to the store. The stages start the work.
"""
