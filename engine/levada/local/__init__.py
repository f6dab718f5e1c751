"""What a machine needs before a pipeline runs on it: a Java, Spark's jars with checksums, an embedded PostgreSQL.

Nothing here knows of pipelines.
"""
