// Package gateway is what happens to a payment: the only package that knows the whole story, and the owner of the answers
// it stores.
//
// A card authorisation is recorded, exchanged and settled (Authorize). Recorded means committed: the row with its STAN, RRN
// and deadline, the claim on the client's key, the hold in the ledger and the journal line stand in PostgreSQL before the
// first byte leaves. The exchange has three outcomes and never two: answered; certainly not sent; unknown. Unknown commits
// the state timed_out together with the reversal that is owed, and only then is the caller told.
//
// It never sends an authorisation twice, never says failed of what it does not know, and never tells a caller anything that
// is not stored. Every transition is a compare-and-set in SQL, so a live timeout, the sweep of another daemon and a late
// answer can meet at one row and one of them wins.
//
// Only this package calls what moves money in package ledger.
package gateway
