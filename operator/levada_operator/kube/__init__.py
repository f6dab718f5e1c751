"""Requests to the API server and to drivers. Only this package imports the Kubernetes client.

Every request has a time-out. Watches are left to kopf.
"""
