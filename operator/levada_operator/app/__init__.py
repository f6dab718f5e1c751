"""The operator's process. Only this package imports kopf.

kopf's watch events enqueue Pipelines, workers take them from a keyed queue, `reconcile` decides, and `act` writes.
"""
