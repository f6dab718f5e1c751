"""Requests to the API server and to drivers. Only this package imports the HTTP clients.

Every request has a time-out. Watches are left to kopf.
"""
