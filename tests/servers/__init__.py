"""Servers for the tests of the engine other than PostgreSQL: fetched from Maven, run on loopback, ended."""
