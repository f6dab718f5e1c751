"""The API server and the drivers, over the network: the only package that knows the client of Kubernetes.

Nothing here decides; every request has a time-out, and none is a watch.
"""
