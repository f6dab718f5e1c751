"""The Kubernetes operator. It runs a driver pod for each Pipeline and reports the drivers' progress in status.

The packages follow the steps observe, decide, act:

- ``observe``: the observed state, as frozen values read from Kubernetes objects and from the drivers' progress. No I/O.
- ``decide``: `reconcile`, a pure function from the observed state to a plan, and its parts.
- ``desired``: pure functions that build the desired state of every owned object.
- ``act``: execution of plans, within a budget of writes to the API server.
- ``kube``: requests to the API server and to drivers.
- ``crds``: the generated CustomResourceDefinitions.
- ``app``: the process. Only this package imports kopf, which triggers reconciliation and decides nothing.

From the engine the operator imports only the manifest models (`levada.spec`), values, errors and the log format.
"""
