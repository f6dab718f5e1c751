"""Random histories of statements on a real server under a real engine, with oracles: ``python -m tests.histories``.

A history is generated on a twin database without Levada, and played again on the source of a running engine. Many
histories share one engine, each in a schema of its own. A history that fails is shortened to few statements.

What it finds of faults whose correction was taken back, on two cores with a load of 10. ``python -m
tests.histories.proof`` seeds each of them, and searches for it from seed 1 on. The time to shorten a history comes
after that to find it, and the statements are those of the shortened one besides the creation of its schema.

============================================= ========================== ========= ================ ========= ==========
Fault                                         World                      Found     Histories played Shortened Statements
============================================= ========================== ========= ================ ========= ==========
Another order of a key is another key         ``ducklake-18``            234 s     48               740 s     9
A root's new identity leaves no known columns ``ducklake-18``            1044 s    84 [1]_          232 s     6
A renamed schema takes its tables away        ``ducklake-18``            622 s     48 [1]_          439 s     4
Columns change without a row or the trigger   ``ducklake-16-notrigger``  174 s     36               208 s     4
A partition that returns is the same          ``ducklake-16-notrigger``  352 s     60               176 s     8
Rows of a partition that came and went stay   ``ducklake-16-notrigger``  734 s     120              907 s     5
A partition's value wraps                     ``iceberg-18-partitioned`` 332 s     12 [1]_          235 s     5
Columns that Spark takes for one              ``iceberg-18``             608 s     72 [4]_          121 s     1
A generated key counts as none                ``ducklake-16``            488 s     36 [3]_          263 s     3
A new array column in files without live rows ``iceberg-18``             815 s     36 [1]_          no [5]_
An emptied table counts as rewritten          ``ducklake-18``            1109 s    48               no [2]_
============================================= ========================== ========= ================ ========= ==========

.. [1] With a load of 20.
.. [2] On two cores with a load of 25. An earlier generator found it in 4 statements.
.. [3] Together with the rule that a key lacks no part in the stream. Each of the two alone hides what the other lets
   pass: nothing was found in 36 histories and 964 s with the first one taken back.
.. [4] With a load of 12. Nothing was found in the first 60 of these.
.. [5] Its history alone does not show it, because its rows are then streamed and not copied. One written by hand does
   in 4 statements: create a table, insert rows, delete them all, add the column.
"""
