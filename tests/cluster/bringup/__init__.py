"""A real Kubernetes on one machine, without Docker: its control plane, one node, and a network of its own.

It needs Linux, root, Go and Debian's packages. Everything that runs is in namespaces of its own and ends with their
first process; no packet of it leaves the machine. What is built and fetched stays in the cache; each start is an empty
cluster. No test is here: they are in `tests.cluster.api` and `tests.cluster.node`.
"""
