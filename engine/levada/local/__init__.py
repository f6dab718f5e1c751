"""The prerequisites of a pipeline on this machine: Java, Spark's jars with checksums, an embedded PostgreSQL.

This package does not depend on pipelines.
"""
