"""Servers that the engine is tested against, beside PostgreSQL: fetched from Maven, run on loopback, ended."""
