package ledger

import (
	"bytes"
	"fmt"
)

// SealFault is why a seal does not hold.
type SealFault string

// The faults of a seal.
const (
	SealMissing      SealFault = "seal missing"              // a number of the chain is absent
	SealUnordered    SealFault = "seal out of order"         // it ends before the previous one, or has another's place
	ChainBroken      SealFault = "previous hash differs"     // it does not continue the seal before it
	PostingsMissing  SealFault = "postings missing"          // fewer postings in its range than were sealed
	PostingsInserted SealFault = "postings added afterwards" // more postings in its range than were sealed
	ContentEdited    SealFault = "content differs"           // the right number, but a posting or the seal was edited
)

// BrokenSeal is the first seal of the chain that does not hold. The fault lies in it or among the postings it covers, which
// are those after the previous seal's position up to (ThroughTx, ThroughID).
type BrokenSeal struct {
	Seq       int64
	Fault     SealFault
	Sealed    int32 // postings it was sealed over
	Found     int32 // postings there are now
	ThroughTx uint64
	ThroughID int64
}

// Report is what Verify found.
type Report struct {
	Seals         int64 // seals that hold, from the first one checked
	Postings      int64 // postings they cover
	Unsealed      int64 // postings the chain does not cover yet
	Head          int64 // number of the last seal
	HeadHash      []byte
	Broken        *BrokenSeal // nil when the whole chain holds
	TrialBalances []TrialBalance
	Stray         int64 // postings with an account that does not exist or has another currency
	Differences   []Difference
	Overreleases  []Overrelease
}

// OK says that nothing is wrong.
func (r Report) OK() bool { return len(r.Faults()) == 0 }

// Faults is one line for each thing that is wrong.
func (r Report) Faults() []string {
	var faults []string
	if b := r.Broken; b != nil {
		faults = append(faults, fmt.Sprintf("seal %d: %s (sealed over %d postings, found %d, up to transaction %d posting %d)",
			b.Seq, b.Fault, b.Sealed, b.Found, b.ThroughTx, b.ThroughID))
	}
	for _, t := range r.TrialBalances {
		if t.Debit != t.Credit {
			faults = append(faults, fmt.Sprintf("trial balance %s %s: debits %d, credits %d minor units",
				t.Currency, t.Layer, t.Debit, t.Credit))
		}
	}
	if r.Stray > 0 {
		faults = append(faults, fmt.Sprintf("%d postings name an account that does not exist or has another currency", r.Stray))
	}
	for _, d := range r.Differences {
		faults = append(faults, d.String())
	}
	for _, o := range r.Overreleases {
		faults = append(faults, fmt.Sprintf("intent %s transaction %d: account %d got back %d minor units more than was held",
			o.Intent, o.Transaction, o.Account, o.Minor))
	}
	return faults
}

// String is the difference as one line for people.
func (d Difference) String() string {
	return fmt.Sprintf("account %d %s on %s: projected debit %d credit %d, recomputed debit %d credit %d minor units",
		d.Account, d.Layer, d.BookedOn.Format("2006-01-02"), d.ProjectedDebit, d.ProjectedCredit, d.RecomputedDebit,
		d.RecomputedCredit)
}

// chainWalk checks seals and postings as they are read, both in order, holding one seal at a time.
type chainWalk struct {
	previous seal // the last seal that held
	seals    int64
	postings int64
	broken   *BrokenSeal
}

// link checks what a seal says by itself and about the one before it.
func (w *chainWalk) link(s seal) bool {
	switch {
	case s.Seq != w.previous.Seq+1:
		return w.breakAt(seal{Seq: w.previous.Seq + 1, ThroughTx: s.ThroughTx, ThroughID: s.ThroughID}, SealMissing, 0)
	case w.previous.covers(Entry{Tx: s.ThroughTx, ID: s.ThroughID}):
		return w.breakAt(s, SealUnordered, 0)
	case !bytes.Equal(s.PreviousHash, w.previous.Hash):
		return w.breakAt(s, ChainBroken, 0)
	}
	return true
}

// close compares a seal with the postings found in its range.
func (w *chainWalk) close(s seal, h *sealHash) bool {
	switch {
	case h.postings < s.Postings:
		return w.breakAt(s, PostingsMissing, h.postings)
	case h.postings > s.Postings:
		return w.breakAt(s, PostingsInserted, h.postings)
	case !bytes.Equal(h.finish(), s.Hash):
		return w.breakAt(s, ContentEdited, h.postings)
	}
	w.previous = s
	w.seals++
	w.postings += int64(h.postings)
	return true
}

func (w *chainWalk) breakAt(s seal, fault SealFault, found int32) bool {
	w.broken = &BrokenSeal{
		Seq: s.Seq, Fault: fault, Sealed: s.Postings, Found: found, ThroughTx: s.ThroughTx, ThroughID: s.ThroughID,
	}
	return false
}
