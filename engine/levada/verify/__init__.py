"""Compares a table at the destination with the source at one LSN, and finds the keys that differ.

This package computes and compares. It does not decide when a table is compared, which is the engine's work
(`levada.runtime.verifications`), and it changes nothing.

Why both sides show the same moment
===================================

Let S be the consistent point of a temporary logical slot that was created with EXPORT_SNAPSHOT.

1. The exported snapshot shows exactly the transactions whose commit LSN is below S. When PostgreSQL builds such a
   snapshot, it waits until every transaction that was running has ended, and the snapshot is built from the decoded
   commit records below S. A transaction that is in progress at S commits above S, so its rows are not in the snapshot.
   This is the boundary of the initial copy too, where it was tested against the stream of the main slot.
2. The commit LSN of a staged change is that of its transaction's commit record. The engine applies a change of a table
   exactly once, in the order of commit LSNs. So a table at the destination that was applied up to S has exactly the
   changes with a commit LSN below S, if no change at or above S was applied to it.
3. The engine makes such a moment. It holds the table first, so that no batch runs, and creates the slot only then. All
   that was applied was received from the server before, so it lies below S. Then the table applies batches again, and
   each ends at S at the latest: a batch is cut at S even if that is in the middle of a segment. A transaction has a
   single commit LSN, so that no transaction is cut. The moment is reached once everything below S is staged and no
   staged change of the table below S is left. Nothing at or above S was applied until then.
4. At that moment the destination returns its current version, which later commits do not change, and the table goes on.
   An Iceberg table returns its snapshot.

So the snapshot of the source and the version of the destination hold the effect of the same set of transactions. The
part that reaches the moment is `levada.runtime.stages.holds`. It knows nothing of comparisons.

The table keeps its shape while the source is read: ACCESS SHARE locks keep out TRUNCATE and rewrites, which an older
snapshot would show, and the catalog is compared before and after (`levada.copy.guard`). If it changed, the comparison
is repeated with a new S.

Why equal means equal
=====================

Both sides compute the same canonical text of each row, see `levada.destinations.verification`. A row's hash is 60 bits
of the MD5 of that text. Rows are divided into chunks by the hash of their key, which does not depend on a collation or
an order. Two chunks are equal if they have the same number of rows and the same exact sum of hashes. A chunk with a
difference passes with a probability of about 2**-60.
"""
