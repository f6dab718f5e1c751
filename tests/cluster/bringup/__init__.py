"""A real Kubernetes on one machine, without Docker: its control plane, one node, and a network of its own.

It needs Linux, root, Go and Debian's packages. All its processes are in namespaces of its own and end with their first
process. No packet of it leaves the machine. Built and fetched files stay in the cache, and each start is an empty
cluster. No test is here: they are in `tests.cluster.api` and `tests.cluster.node`.
"""
