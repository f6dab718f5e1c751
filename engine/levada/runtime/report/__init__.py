"""Reports on a running pipeline: the progress snapshot, the lag sampler, metrics, liveness and the HTTP server.

The package only reads. It changes neither the pipeline nor its tables.
"""
