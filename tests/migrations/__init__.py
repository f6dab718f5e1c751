"""Migration histories that projects publish, played under a running pipeline: ``python -m tests.migrations``.

Each project is installed from its package into an environment of its own, and nothing of it is in this tree. Its
migrations are carried out one by one, with random rows between them, while ``levada run`` with a default manifest
replicates all tables and a reader polls the lake. At the end every table must be Ready and equal, without a command.
"""
