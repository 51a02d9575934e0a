// Package ledger is the double entry book of schemegate, append-only, on PostgreSQL.
//
// It promises that every movement is one posting that names both its sides, in integer minor units, under a key derived
// from the intent that caused it; that the same key is never posted twice; that any balance, at any moment, can be computed
// again from the postings; and that an edit of history is found: a sealer chains hashes over the postings, and Verify walks
// the chain.
//
// It never changes or removes a posting, by privilege first and by trigger second. A correction is a posting of its own,
// marked as one; a refund is new business and is not. It never holds personal data or card data: identifiers and amounts
// only. It never decides what an event posts; that is the gateway's story. Whatever moves money takes the caller's
// transaction (or is SQL text inside the caller's statement), reads are open to anyone.
//
// # Order and sealing
//
// Each posting carries the id of the transaction that wrote it. Sealing reads below the snapshot horizon, the oldest
// transaction still running, in the order (tx, id). Nothing below the horizon can still appear, so nothing is skipped,
// however late a transaction commits. One transaction left open anywhere in the cluster therefore delays sealing, never
// posting.
package ledger
