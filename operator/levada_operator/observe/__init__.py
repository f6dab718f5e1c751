"""What is the case: frozen values read from objects of Kubernetes and from a driver's progress.

The observer never acts, and does no I/O: `levada_operator.kube` reads the objects, `levada_operator.decide` decides.
"""
