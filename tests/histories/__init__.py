"""Random histories of statements on a real server under a real engine, with oracles: ``python -m tests.histories``.

A history is generated on a twin database without Levada, and played again on the source of a running engine. Many
histories share one engine, each in a schema of its own. A history that fails is shortened to few statements.

What it finds of faults whose correction was taken back, on two busy cores. ``python -m tests.histories.proof`` seeds
the first five and searches for each, from seed 1 on. The time to shorten a history comes after that to find it, and the
statements are those of the shortened one besides the creation of its schema.

============================================= ========================== ======== ================ ========= ==========
Fault                                         World                      Found    Histories played Shortened Statements
============================================= ========================== ======== ================ ========= ==========
Another order of a key is another key         ``ducklake-18``            148 s    12               294 s     4 [1]_
A root's new identity leaves no known columns ``ducklake-18``            26 s     12               66 s      9 [2]_
A renamed schema takes its tables away        ``ducklake-18``            348 s    24               241 s     2 [1]_
A partition's value wraps                     ``iceberg-18-partitioned`` 435 s    12               445 s     2 [1]_
Columns that Spark takes for one              ``iceberg-18``             177 s    12               524 s     2 [1]_
A generated key counts as none                ``ducklake-16``            373 s    not counted      included  3
A new array column in files without live rows ``iceberg-18``             407 s    not counted      included  5
An emptied table counts as rewritten          ``ducklake-18``            468 s    not counted      included  4
Columns change without a row or the trigger   ``ducklake-16-notrigger``  248 s    not counted      included  not kept
============================================= ========================== ======== ================ ========= ==========

.. [1] On cores with a load of 20 to 30.
.. [2] Six of them are sent together, as one transaction.

The last four were found by an earlier generator, which wrote less often to a table after it had changed it.
"""
