"""Levada: Postgres tables, kept up to date in a lakehouse."""

__version__ = "0.1.0"
