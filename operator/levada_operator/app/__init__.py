"""The operator's process. Only this package imports kopf.

kopf runs the process from its start to its clean-up. The operator's own watches enqueue Pipelines, because kopf reads
all objects of a kind at once, however large they are. Workers take them from a keyed queue, `reconcile` decides, and
`act` writes.
"""
