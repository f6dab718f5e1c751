"""Decisions: pure functions from the observed state to a plan. The time is an argument."""
