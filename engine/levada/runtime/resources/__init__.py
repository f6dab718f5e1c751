"""Resources that a pipeline opens on its machine: the Spark session and the staging area."""
