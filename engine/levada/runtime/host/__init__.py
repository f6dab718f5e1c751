"""The engine as a process: a pipeline's parts made from a manifest, and the files watched while the pipeline runs.

The command line parses arguments and prints. Everything else that `levada run` does belongs here.
"""
