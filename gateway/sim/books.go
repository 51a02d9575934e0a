package sim

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// Kind is what an approval does to the customer's money. It follows from the message type and from DE 3.
type Kind string

// The kinds.
const (
	KindHold       Kind = "hold"       // an authorisation: the amount is held
	KindDebit      Kind = "debit"      // a financial request: the amount is posted at once
	KindCredit     Kind = "credit"     // a refund (DE 3 from 20 to 29): posted towards the customer
	KindInquiry    Kind = "inquiry"    // DE 3 from 30 to 39: no money; the answer has balances
	KindOther      Kind = "other"      // any other DE 3: no money
	KindCompletion Kind = "completion" // an advice that captures an authorisation
)

// Hold is what the issuer knows of one original: its own books, to be compared with those of whoever sent it. All amounts are minor
// units. A completion has one of its own beside its authorisation's, since it can be reversed by itself.
type Hold struct {
	Kind           Kind
	Card           string // masked
	RequestedMinor int64  // DE 4 of the request
	ApprovedMinor  int64  // 0 when declined
	HeldMinor      int64  // now
	PostedMinor    int64  // debits that stand now: a financial request's own; of an authorisation, its completions'
	CreditedMinor  int64  // a refund that stands now
	CapturedMinor  int64  // of an authorisation: by completions that stand now
	ReversedMinor  int64  // taken back by reversals of this original, in whole and in part
	ReleasedMinor  int64  // let go by the completion that ended the hold
	Currency       string // DE 49
	RRN            string
	ResponseCode   string  // as decided, whether or not the answer arrived; empty for an original that never came
	ApprovalCode   string  // DE 38
	Original       HoldKey // of a completion: the authorisation that it names
	Unmatched      bool    // of a completion: no approved authorisation has its money
	Requests       int     // times the request came: 0 when only its reversal did
	Completions    int     // of an authorisation: how many different ones came
	Reversals      int     // reversal messages that reached the issuer, repeats included
	Reversed       bool    // as a whole
	ReceivedAt     time.Time
	ReversedAt     time.Time // as a whole

	card   [sha256.Size]byte // keyed digest of DE 2, to see that other messages are about the same card
	undone []undone          // the different reversals, each once
}

// standing is what is left of the approved amount after partial reversals.
func (h *Hold) standing() int64 { return h.ApprovedMinor - h.ReversedMinor }

// shelf keeps holds by key; the oldest makes room.
type shelf struct {
	max       int
	byKey     map[HoldKey]*Hold
	order     []HoldKey // as they came
	forgotten int
}

func newShelf(limit int) shelf { return shelf{max: limit, byKey: map[HoldKey]*Hold{}} }

func (s *shelf) keep(key HoldKey, h *Hold) {
	if len(s.order) >= s.max {
		delete(s.byKey, s.order[0])
		s.order = s.order[1:]
		s.forgotten++
	}
	s.byKey[key] = h
	s.order = append(s.order, key)
}

func (s *shelf) copied() map[HoldKey]Hold {
	holds := make(map[HoldKey]Hold, len(s.byKey))
	for key, h := range s.byKey {
		page := *h
		page.undone = slices.Clone(h.undone)
		holds[key] = page
	}
	return holds
}

// bookRules are what the profile decides about the books.
type bookRules struct {
	unknownOriginal    string // response codes
	nothingHeld        string
	alreadyReversed    string
	partialByAmount    bool // DE 4 alone tells a partial reversal
	completionEndsHold bool
}

// books are the issuer's, safe for concurrent use.
type books struct {
	wire    *wire
	cardKey []byte
	rules   bookRules

	mu          sync.Mutex // protects the following
	holds       shelf
	completions shelf
	approvals   int
}

func newBooks(w *wire, cardKey []byte, limit int, rules bookRules) *books {
	return &books{wire: w, cardKey: cardKey, rules: rules, holds: newShelf(limit), completions: newShelf(limit)}
}

// verdict is what the issuer decided.
type verdict struct {
	code         string // DE 39
	approvalCode string // DE 38
	amount       int64  // DE 4 of the answer; -1 keeps the request's
	balances     bool   // the answer has DE 54
	note         string // what the books did, for the journal
	violation    string // what the sender did wrong, for the journal
}

// wish is what the rules want for a request that the books do not know yet.
type wish struct {
	code   string
	amount int64 // to approve; 0 for a decline
}

// authorize decides a request once: a copy of it gets the same answer again and holds nothing more, one that was reversed before
// it came is declined.
func (b *books) authorize(m *iso8583.Message, key HoldKey, w wish) verdict {
	card, class := b.cardDigest(m), m.MTI().Class()
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, known := b.holds.byKey[key]; known {
		h.Requests++
		switch {
		case h.ResponseCode == "":
			h.Kind, h.ResponseCode, h.RequestedMinor = kindOf(m), b.wire.code(class, "05"), max(0, amountOf(m))
			return verdict{code: h.ResponseCode, amount: -1, note: "declined: reversed before it came"}
		case h.card != card || h.RequestedMinor != max(0, amountOf(m)):
			return verdict{code: b.wire.code(class, "94"), amount: -1, violation: "another request under the same DE 7, 11, 32 and 33"}
		}
		return verdict{code: h.ResponseCode, approvalCode: h.ApprovalCode, amount: h.answerAmount(),
			balances: h.showsBalances(), note: "copy: answered as before"}
	}
	h := b.open(m, kindOf(m))
	h.ResponseCode, h.ApprovedMinor = b.wire.code(class, w.code), max(0, w.amount)
	if isApproval(h.ResponseCode) {
		b.approvals++
		h.ApprovalCode = fmt.Sprintf("%06d", b.approvals%1_000_000)
	}
	switch h.Kind {
	case KindHold:
		h.HeldMinor = h.ApprovedMinor
	case KindDebit:
		h.PostedMinor = h.ApprovedMinor
	case KindCredit:
		h.CreditedMinor = h.ApprovedMinor
	}
	b.holds.keep(key, h)
	return verdict{code: h.ResponseCode, approvalCode: h.ApprovalCode, amount: h.answerAmount(), balances: h.showsBalances()}
}

// open begins a page for a message.
func (b *books) open(m *iso8583.Message, kind Kind) *Hold {
	return &Hold{Kind: kind, Card: iso8583.MaskPAN(m.Get(iso8583.PAN)), RequestedMinor: max(0, amountOf(m)),
		Currency: m.Get(iso8583.CurrencyTransaction), RRN: m.Get(iso8583.RRN), Requests: 1, ReceivedAt: time.Now(), card: b.cardDigest(m)}
}

// answerAmount is DE 4 of the answer: what was approved in part, else what was asked for.
func (h *Hold) answerAmount() int64 {
	if isPartial(h.ResponseCode) {
		return h.ApprovedMinor
	}
	return -1
}

func (h *Hold) showsBalances() bool { return h.Kind == KindInquiry && isApproval(h.ResponseCode) }

// kindOf is what a request does with money: DE 3 from 00 to 19 debits, 20 to 29 credits, 30 to 39 asks.
func kindOf(m *iso8583.Message) Kind {
	first := byte('0')
	if code := m.Get(iso8583.ProcessingCode); code != "" {
		first = code[0]
	}
	switch {
	case first == '2':
		return KindCredit
	case first == '3':
		return KindInquiry
	case first > '3':
		return KindOther
	case m.MTI().Class() == 2:
		return KindDebit
	}
	return KindHold
}

func (b *books) cardDigest(m *iso8583.Message) [sha256.Size]byte {
	mac := hmac.New(sha256.New, b.cardKey)
	mac.Write([]byte(m.Get(iso8583.PAN)))
	return [sha256.Size]byte(mac.Sum(nil))
}

func (b *books) forgottenCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds.forgotten + b.completions.forgotten
}

// Books are the issuer's at one moment.
type Books struct {
	Holds       map[HoldKey]Hold // every request for money, by its own name; also those of which only a reversal came
	Completions map[HoldKey]Hold // every completion, by its own name
}

func (b *books) snapshot() Books {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Books{Holds: b.holds.copied(), Completions: b.completions.copied()}
}

// Totals are sums over the books in one currency, in minor units, as they stand.
type Totals struct {
	HeldMinor     int64
	PostedMinor   int64 // debits, completions without an authorisation included
	CreditedMinor int64
	CapturedMinor int64 // the part of PostedMinor that completions of authorisations posted
	ReversedMinor int64 // taken back from authorisations, financial requests and refunds
}

// Totals sums by currency as DE 49 has it, so that a test can hold a ledger against them.
func (b Books) Totals() map[string]Totals {
	totals := map[string]Totals{}
	for _, h := range b.Holds {
		t := totals[h.Currency]
		t.HeldMinor += h.HeldMinor
		t.PostedMinor += h.PostedMinor
		t.CreditedMinor += h.CreditedMinor
		t.CapturedMinor += h.CapturedMinor
		t.ReversedMinor += h.ReversedMinor
		totals[h.Currency] = t
	}
	for _, h := range b.Completions {
		if h.Unmatched {
			t := totals[h.Currency]
			t.PostedMinor += h.PostedMinor
			totals[h.Currency] = t
		}
	}
	return totals
}

// ByRRN gives the requests with a DE 37, in no order.
func (b Books) ByRRN(rrn string) []Hold {
	var list []Hold
	for _, h := range b.Holds {
		if h.RRN == rrn {
			list = append(list, h)
		}
	}
	return list
}

// CompletionsOf gives the completions that name an authorisation, in the order they came.
func (b Books) CompletionsOf(original HoldKey) []Hold {
	var list []Hold
	for _, h := range b.Completions {
		if h.Original == original {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b Hold) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	return list
}
