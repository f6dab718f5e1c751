"""Reports of a running pipeline: the snapshot of its progress, the lag sampler, metrics, liveness and the HTTP port.

Nothing here changes anything.
"""
