package sim

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// HoldKey names an original as DE 90 does: its message type without the repeat bit, DE 11, DE 7, and DE 32 and DE 33 filled with
// zeros to 11 digits.
type HoldKey struct {
	MTI                  iso8583.MTI
	STAN                 string
	TransmissionDateTime string
	AcquirerID           string
	ForwarderID          string
}

func holdKey(m *iso8583.Message) HoldKey {
	return HoldKey{MTI: m.MTI().WithoutRepeat(), STAN: m.Get(iso8583.STAN), TransmissionDateTime: m.Get(iso8583.TransmissionDateTime),
		AcquirerID: zeroFill(m.Get(iso8583.AcquirerID)), ForwarderID: zeroFill(m.Get(iso8583.ForwarderID))}
}

// originalKey is what a reversal's DE 90 names; an error when it is missing or malformed.
func originalKey(m *iso8583.Message) (HoldKey, error) {
	o, err := iso8583.ParseOriginalDataElements(m.Get(iso8583.OriginalData))
	if err != nil {
		return HoldKey{}, err
	}
	return HoldKey{MTI: o.MTI.WithoutRepeat(), STAN: o.STAN, TransmissionDateTime: o.TransmissionDateTime,
		AcquirerID: zeroFill(o.AcquirerID), ForwarderID: zeroFill(o.ForwarderID)}, nil
}

func zeroFill(id string) string { return strings.Repeat("0", max(0, 11-len(id))) + id }

// Hold is what the issuer knows of one original: its own books, to be compared with those of whoever sent it.
type Hold struct {
	Card           string // masked
	RequestedMinor int64  // DE 4 of the request
	ApprovedMinor  int64  // 0 when declined
	HeldMinor      int64  // now: ApprovedMinor, or 0 after a reversal
	Currency       string // DE 49
	RRN            string
	ResponseCode   string // as decided, whether or not the answer arrived; empty for an original that never came
	ApprovalCode   string
	Requests       int // times the request came: 0 when only its reversal did
	Reversals      int // reversal messages that reached the issuer, repeats included
	Reversed       bool
	ReceivedAt     time.Time // of the request, or of the reversal that came without one
	ReversedAt     time.Time

	reversalSTAN string            // of the first reversal message: its repeats have the same
	card         [sha256.Size]byte // keyed digest of DE 2, to see that a reversal is about the same card
}

// books are the issuer's, safe for concurrent use.
type books struct {
	cardKey []byte
	max     int

	mu        sync.Mutex // protects the following
	holds     map[HoldKey]*Hold
	order     []HoldKey // as they came, so that the oldest can make room
	forgotten int
	approvals int
}

func newBooks(cardKey []byte, limit int) *books {
	return &books{cardKey: cardKey, max: limit, holds: map[HoldKey]*Hold{}}
}

// verdict is what the issuer decided.
type verdict struct {
	code         string // DE 39
	approvalCode string // DE 38
	amount       int64  // DE 4 of the answer; -1 keeps the request's
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
func (b *books) authorize(m *iso8583.Message, w wish) verdict {
	key, card := holdKey(m), b.cardDigest(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, known := b.holds[key]; known {
		h.Requests++
		switch {
		case h.ResponseCode == "":
			h.ResponseCode, h.RequestedMinor = "05", amountOf(m)
			return verdict{code: "05", amount: -1, note: "declined: reversed before it came"}
		case h.card != card || h.RequestedMinor != amountOf(m):
			return verdict{code: "94", amount: -1, violation: "another request under the same DE 7, 11, 32 and 33"}
		}
		return verdict{code: h.ResponseCode, approvalCode: h.ApprovalCode, amount: h.answerAmount(), note: "copy: answered as before"}
	}
	h := &Hold{Card: iso8583.MaskPAN(m.Get(iso8583.PAN)), RequestedMinor: amountOf(m), ApprovedMinor: w.amount, HeldMinor: w.amount,
		Currency: m.Get(iso8583.CurrencyTransaction), RRN: m.Get(iso8583.RRN), ResponseCode: w.code, Requests: 1,
		ReceivedAt: time.Now(), card: card}
	if isApproval(w.code) {
		b.approvals++
		h.ApprovalCode = fmt.Sprintf("%06d", b.approvals%1_000_000)
	}
	if !takesMoney(m.Get(iso8583.ProcessingCode)) {
		h.HeldMinor = 0
	}
	b.keep(key, h)
	return verdict{code: w.code, approvalCode: h.ApprovalCode, amount: h.answerAmount()}
}

// reversalCodes are the answers to reversals that the profile decides.
type reversalCodes struct{ unknownOriginal, nothingHeld string }

// reverse releases what the original holds, once; each repeat gets the same answer. An original that never came is remembered, so
// that it is declined when it does.
func (b *books) reverse(m *iso8583.Message, codes reversalCodes) verdict {
	key, err := originalKey(m)
	if err != nil {
		return verdict{code: "30", amount: -1, violation: "DE 90 is missing or malformed"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h, known := b.holds[key]
	if !known {
		b.keep(key, &Hold{Card: iso8583.MaskPAN(m.Get(iso8583.PAN)), Currency: m.Get(iso8583.CurrencyTransaction),
			RRN: m.Get(iso8583.RRN), Reversals: 1, ReceivedAt: time.Now(), reversalSTAN: m.Get(iso8583.STAN), card: b.cardDigest(m)})
		return verdict{code: codes.unknownOriginal, amount: -1, note: "original unknown, remembered"}
	}
	h.Reversals++
	v := verdict{code: approved, amount: -1, violation: h.contradicts(m, b.cardDigest(m))}
	contradicts := v.violation != ""
	if h.Reversals == 1 {
		h.reversalSTAN = m.Get(iso8583.STAN)
	} else if !contradicts {
		v.violation = h.wrongRepeat(m)
	}
	switch {
	case contradicts:
		v.code = codes.unknownOriginal
	case h.Requests == 0:
		v.code, v.note = codes.unknownOriginal, "repeat: original unknown"
	case h.Reversed:
		v.note = "repeat: reversed before"
	case !isApproval(h.ResponseCode):
		v.code, v.note = codes.nothingHeld, "nothing held"
	default:
		h.HeldMinor, h.Reversed, h.ReversedAt = 0, true, time.Now()
		v.note = "released"
	}
	return v
}

// contradicts says how a reversal differs from the original that it names, "" when it does not.
func (h *Hold) contradicts(m *iso8583.Message, card [sha256.Size]byte) string {
	switch {
	case m.Has(iso8583.PAN) && h.card != card:
		return "the reversal names another card than its original"
	case m.Has(iso8583.RRN) && h.RRN != "" && m.Get(iso8583.RRN) != h.RRN:
		return "the reversal has another DE 37 than its original"
	case h.Requests > 0 && amountOf(m) > h.RequestedMinor:
		return "the reversal has a higher DE 4 than its original"
	}
	return ""
}

// wrongRepeat says how a reversal that came again is no repeat of the first, "" when it is one. It is undone all the same.
func (h *Hold) wrongRepeat(m *iso8583.Message) string {
	switch {
	case !m.MTI().IsRepeat():
		return "the reversal came again without the repeat bit"
	case m.Get(iso8583.STAN) != h.reversalSTAN:
		return "the reversal's repeat has another DE 11"
	}
	return ""
}

// answerAmount is DE 4 of the answer: what was approved in part, else what was asked for.
func (h *Hold) answerAmount() int64 {
	if h.ResponseCode == partiallyApproved {
		return h.ApprovedMinor
	}
	return -1
}

// keep adds a hold; the oldest makes room. The caller holds mu.
func (b *books) keep(key HoldKey, h *Hold) {
	if len(b.order) >= b.max {
		delete(b.holds, b.order[0])
		b.order = b.order[1:]
		b.forgotten++
	}
	b.holds[key] = h
	b.order = append(b.order, key)
}

func (b *books) snapshot() map[HoldKey]Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	holds := make(map[HoldKey]Hold, len(b.holds))
	for key, h := range b.holds {
		holds[key] = *h
	}
	return holds
}

func (b *books) forgottenCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forgotten
}

func (b *books) cardDigest(m *iso8583.Message) [sha256.Size]byte {
	mac := hmac.New(sha256.New, b.cardKey)
	mac.Write([]byte(m.Get(iso8583.PAN)))
	return [sha256.Size]byte(mac.Sum(nil))
}

// isApproval tells whether a response code lets the money go: 00, 08, 11, 16, and 10 for a part of it.
func isApproval(code string) bool {
	switch code {
	case approved, "08", partiallyApproved, "11", "16":
		return true
	}
	return false
}

// takesMoney tells whether a request holds funds of the card: DE 3 from 00 to 19 debits, 20 to 29 credits, 30 to 39 asks.
func takesMoney(processingCode string) bool {
	return processingCode == "" || processingCode[0] == '0' || processingCode[0] == '1'
}
