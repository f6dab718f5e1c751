"""What the pipeline knows of its tables: phases, requests, retries, resyncs, and the registry that owns them.

The rules are pure. Only the registry and the journals write to the store. Nothing here starts work: that is the stages.
"""
