"""The shell: kopf wakes, a keyed queue orders, `reconcile` decides, `act` acts. The only package that knows kopf."""
