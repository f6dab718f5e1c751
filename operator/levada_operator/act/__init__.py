"""Execution of plans: writes of objects, statuses and Events, within a budget. Nothing here decides what to write."""
