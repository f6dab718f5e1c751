"""The observed state: frozen values read from Kubernetes objects and from drivers' progress, and their cache.

This package does no I/O. `levada_operator.kube` fetches the objects, and `levada_operator.decide` decides what to do.
"""
