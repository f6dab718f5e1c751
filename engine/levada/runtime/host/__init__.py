"""The engine as a process: from a manifest to a pipeline's parts, and the files that are watched while it runs.

The command line parses and prints. Everything else that `levada run` does belongs here.
"""
