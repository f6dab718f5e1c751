"""Random histories of statements on a real server under a real engine, with oracles: ``python -m tests.histories``.

A history is generated on a twin database without Levada, and played again on the source of a running engine. Many
histories share one engine, each in a schema of its own. A history that fails is shortened to few statements.

What it finds of faults whose correction was taken back, on two busy cores. A minimal history is one by hand.

=================================================== ========================= ================= =======================
Fault                                               World                     Minimal history   Search
=================================================== ========================= ================= =======================
Another order of a key is another key               ``ducklake-18``           (a), kept         not in 108 histories
A root's new identity leaves no known columns       ``ducklake-18``           (b), kept         not in 72 histories [1]_
A generated key counts as none                      ``ducklake-16``           (a), kept         373 s, 3 statements
A partition's value wraps                           ``iceberg-18-partitioned`` (a)              not tried
Columns that Spark takes for one                    ``iceberg-18``            (a)               not tried
A new array column in files without live rows       ``iceberg-18``            (d)               407 s, 5 statements
A renamed schema takes its tables away              ``ducklake-18``           (c), kept         not tried
An emptied table counts as rewritten                ``ducklake-18``           (d), kept         468 s, 4 statements
Columns change without a row, without the trigger   ``ducklake-16-notrigger`` (a)               248 s
=================================================== ========================= ================= =======================

.. [1] Nor in 24 since the statements that set the identity of partitions touch most of their rows.
"""
