"""Parquet files of a table in a lake: data files and position deletes, written and read by pyarrow.

Row ``i`` of a data file has position ``i``. Files are written in this process or in the tasks of a copy. A catalog's
commits, its metadata and its names do not live here: the caller gives the columns with their field IDs
(`levada.destinations.data_files.layout`) and the place of the files (`levada.destinations.data_files.storage`).
"""
