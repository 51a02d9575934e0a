package sim

import (
	"crypto/sha256"

	"github.com/schemegate/schemegate/iso8583"
)

// complete posts what an advice captures, once: its repeats get the same answer. It is never refused for a business reason, since what
// it tells has happened; what is wrong with it is a violation. One that was reversed before it came posts nothing.
func (b *books) complete(m *iso8583.Message, key HoldKey) verdict {
	class := m.MTI().Class()
	original, err := b.wire.originalKey(m)
	if err != nil {
		return verdict{code: b.wire.code(class, "30"), amount: -1, violation: "the completion names no original: " + err.Error()}
	}
	card := b.cardDigest(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, known := b.completions.byKey[key]; known {
		c.Requests++
		v := verdict{code: c.ResponseCode, amount: -1, note: "copy: answered as before"}
		switch {
		case c.ResponseCode == "":
			c.ResponseCode, c.RequestedMinor, c.Original = b.wire.code(class, approved), max(0, amountOf(m)), original
			v.code, v.note = c.ResponseCode, "nothing posted: reversed before it came"
		case !m.MTI().IsRepeat():
			v.violation = "the completion came again without the repeat bit"
		case c.RequestedMinor != amountOf(m):
			v.violation = "the completion's repeat has another DE 4"
		}
		return v
	}
	c := b.open(m, KindCompletion)
	c.ResponseCode, c.Original, c.ApprovalCode = b.wire.code(class, approved), original, m.Get(iso8583.ApprovalCode)
	c.ApprovedMinor, c.PostedMinor = c.RequestedMinor, c.RequestedMinor
	b.completions.keep(key, c)
	h, known := b.holds.byKey[original]
	v := verdict{code: c.ResponseCode, amount: -1, note: "posted"}
	if v.violation = h.wrongCompletion(known, c, card); v.violation != "" && !h.canBePosted(known) {
		c.Unmatched, v.note = true, "posted without a hold"
		return v
	}
	h.Completions++
	h.HeldMinor = max(0, h.HeldMinor-c.PostedMinor)
	h.CapturedMinor += c.PostedMinor
	h.PostedMinor += c.PostedMinor
	if b.rules.completionEndsHold {
		h.ReleasedMinor += h.HeldMinor
		h.HeldMinor = 0
	}
	return v
}

// canBePosted tells whether an authorisation can carry a completion's amount, even one it has not got.
func (h *Hold) canBePosted(known bool) bool {
	return known && h.Kind == KindHold && isApproval(h.ResponseCode)
}

// wrongCompletion says what is wrong with a completion, "" for nothing.
func (h *Hold) wrongCompletion(known bool, c *Hold, card [sha256.Size]byte) string {
	switch {
	case !known || h.Requests == 0:
		return "the completion names an authorisation that we do not have"
	case h.Kind != KindHold:
		return "the completion names a request that holds nothing"
	case !isApproval(h.ResponseCode):
		return "the completion names an authorisation that was declined"
	case h.card != card:
		return "the completion names another card than its authorisation"
	case h.Currency != c.Currency:
		return "the completion has another DE 49 than its authorisation"
	case c.RRN != h.RRN:
		return "the completion has another DE 37 than its authorisation"
	case c.ApprovalCode != h.ApprovalCode:
		return "the completion has another DE 38 than its authorisation's answer"
	case h.Reversed:
		return "the completion captures what was reversed"
	case c.PostedMinor > h.HeldMinor:
		return "the completion captures more than is held"
	}
	return ""
}
