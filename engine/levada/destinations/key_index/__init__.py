"""The key index of a table: a local, rebuildable index from each row's key to its data file and position.

A destination that deletes rows by position needs it. It knows data files only by their paths. Files are read by
`levada.destinations.data_files.key_reader`.
"""
