"""Carry plans out: objects, statuses and Events, within the budget of writes. Nothing here decides what is right."""
