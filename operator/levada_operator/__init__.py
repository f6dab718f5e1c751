"""The operator: it turns Pipeline objects into driver pods, and what the drivers tell into status.

Observe, decide, act, each in a package of its own:

- ``observe``: what is the case, as frozen values read from objects of Kubernetes and from a driver's progress. No I/O.
- ``decide``: one pure function from what is observed to a plan, and all that it is made of.
- ``desired``: what every owned object should be, built by pure functions.
- ``act``: carry a plan out, within the budget of writes.
- ``kube``: the only package that knows the client of Kubernetes, and HTTP.
- ``crds``: the CustomResourceDefinitions, generated.
- ``app``: the only package that knows kopf: it wakes, it never decides.

Of the engine it imports the manifest's models (`levada.spec`), values and errors, and nothing else.
"""
