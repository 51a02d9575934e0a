package sim

import (
	"crypto/sha256"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// maxUndone bounds the different reversals of one original.
const maxUndone = 1000

// undone is one reversal that was decided, under its own STAN: its repeats get the same answer.
type undone struct {
	stan  string
	whole bool
	code  string
	note  string
}

// DE 24 of a reversal in 1993, and the parts of DE 95 and DE 30.
const (
	functionPartialReversal = "401"
	amountDigits            = 12
)

// reverse takes back what the original moved, in whole or in part, once for each reversal; its repeats get the same answer. An original
// that never came is remembered, so that it has no effect when it does.
func (b *books) reverse(m *iso8583.Message) verdict {
	key, err := b.wire.originalKey(m)
	if err != nil {
		return b.undoVerdict("30", "", b.wire.spec.OriginalElement().String()+" is missing or malformed")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	where := &b.holds
	if isAdvice(key.MTI) {
		where = &b.completions
	}
	h, known := where.byKey[key]
	if !known {
		h = b.open(m, "")
		h.RequestedMinor, h.Requests, h.Reversals = 0, 0, 1
		v := b.undoVerdict(b.rules.unknownOriginal, "original unknown, remembered", "")
		h.remember(m, v, true)
		where.keep(key, h)
		return v
	}
	h.Reversals++
	if wrong := h.contradicts(m, b.cardDigest(m)); wrong != "" {
		return b.undoVerdict(b.rules.unknownOriginal, "", wrong)
	}
	if v, repeated := h.repeated(m); repeated {
		return v
	}
	v := b.takeBack(h, m)
	if v.code != b.wire.code(4, "30") && v.code != b.wire.code(4, "13") {
		h.remember(m, v, h.Reversed)
	}
	return v
}

func (b *books) undoVerdict(code, note, violation string) verdict {
	return verdict{code: b.wire.code(4, code), amount: -1, note: note, violation: violation}
}

// remember keeps how a reversal was decided.
func (h *Hold) remember(m *iso8583.Message, v verdict, whole bool) {
	h.undone = append(h.undone, undone{stan: m.Get(iso8583.STAN), whole: whole, code: v.code, note: v.note})
}

// repeated gives the answer to a reversal that was decided before. A repeat of nothing we know, for an original that is undone as a
// whole, is taken for a repeat of that one under a wrong DE 11.
func (h *Hold) repeated(m *iso8583.Message) (verdict, bool) {
	stan := m.Get(iso8583.STAN)
	i := slices.IndexFunc(h.undone, func(u undone) bool { return u.stan == stan })
	violation := ""
	if i < 0 && m.MTI().IsRepeat() {
		i = slices.IndexFunc(h.undone, func(u undone) bool { return u.whole })
		violation = "the reversal's repeat has another DE 11"
	} else if !m.MTI().IsRepeat() {
		violation = "the reversal came again without the repeat bit"
	}
	if i < 0 {
		return verdict{}, false
	}
	return verdict{code: h.undone[i].code, amount: -1, note: "repeat: " + h.undone[i].note, violation: violation}, true
}

// takeBack decides a reversal that comes for the first time, for an original that is known. The caller holds mu.
func (b *books) takeBack(h *Hold, m *iso8583.Message) verdict {
	switch {
	case h.Requests == 0:
		return b.undoVerdict(b.rules.unknownOriginal, "original unknown", "")
	case len(h.undone) >= maxUndone:
		return b.undoVerdict("96", "too many reversals of one original", "")
	case h.Reversed:
		return b.undoVerdict(b.rules.alreadyReversed, "reversed before", "the original is reversed already")
	case !isApproval(h.ResponseCode):
		return b.undoVerdict(b.rules.nothingHeld, "nothing held", "")
	}
	standing, partial, err := b.partial(h, m)
	if err != nil {
		return b.undoVerdict("30", "", err.Error())
	}
	if partial {
		taken := h.standing() - standing
		if taken <= 0 || taken > h.HeldMinor+h.ownPosted()+h.CreditedMinor {
			return b.undoVerdict("13", "", "the partial reversal takes back nothing, or more than stands")
		}
		b.undo(h, taken)
		return b.undoVerdict(approved, "taken back in part", "")
	}
	b.undo(h, h.HeldMinor+h.ownPosted()+h.CreditedMinor)
	h.Reversed, h.ReversedAt = true, time.Now()
	return b.undoVerdict(approved, "released", "")
}

// ownPosted is what the original itself posted: completions of an authorisation are reversed by themselves.
func (h *Hold) ownPosted() int64 {
	if h.Kind == KindHold {
		return 0
	}
	return h.PostedMinor
}

// undo takes an amount back from wherever the original has it; a completion's from its authorisation too. The caller holds mu.
func (b *books) undo(h *Hold, minor int64) {
	h.ReversedMinor += minor
	switch h.Kind {
	case KindHold:
		h.HeldMinor -= minor
	case KindDebit:
		h.PostedMinor -= minor
	case KindCredit:
		h.CreditedMinor -= minor
	case KindCompletion:
		h.PostedMinor -= minor
		if a, known := b.holds.byKey[h.Original]; known && !h.Unmatched {
			a.PostedMinor -= minor
			a.CapturedMinor -= minor
		}
	}
}

// partial reads whether a reversal leaves a part of its original standing, and how much of the approved amount: DE 95 (1987), DE 24 =
// 401 with DE 30 (1993), or a DE 4 below what stands where the profile says so.
func (b *books) partial(h *Hold, m *iso8583.Message) (standing int64, partial bool, err error) {
	switch amount := amountOf(m); {
	case b.rules.partialByAmount:
		return h.standing() - amount, amount > 0 && amount < h.standing(), nil
	case b.wire.is1993:
		if m.Get(iso8583.FunctionCode) != functionPartialReversal {
			return 0, false, nil
		}
		original, err := firstAmount(m.Get(iso8583.AmountsOriginal))
		if err != nil {
			return 0, true, errors.New("a partial reversal without DE 30")
		}
		if original != h.ApprovedMinor {
			return 0, true, errors.New("DE 30 is not the approved amount")
		}
		return amount, true, nil
	case m.Has(iso8583.ReplacementAmounts):
		standing, err := firstAmount(m.Get(iso8583.ReplacementAmounts))
		if err != nil {
			return 0, true, errors.New("DE 95 begins with no amount")
		}
		return standing, standing > 0, nil // zero is a full reversal
	}
	return 0, false, nil
}

func firstAmount(text string) (int64, error) {
	if len(text) < amountDigits {
		return 0, errors.New("too short")
	}
	n, err := strconv.ParseUint(text[:amountDigits], 10, 63)
	return int64(n), err
}

// contradicts says how a reversal differs from the original that it names, "" when it does not.
func (h *Hold) contradicts(m *iso8583.Message, card [sha256.Size]byte) string {
	switch {
	case m.Has(iso8583.PAN) && h.card != card:
		return "the reversal names another card than its original"
	case m.Has(iso8583.RRN) && h.RRN != "" && m.Get(iso8583.RRN) != h.RRN:
		return "the reversal has another DE 37 than its original"
	case m.Has(iso8583.CurrencyTransaction) && m.Get(iso8583.CurrencyTransaction) != h.Currency:
		return "the reversal has another DE 49 than its original"
	case h.Requests > 0 && amountOf(m) > h.RequestedMinor:
		return "the reversal has a higher DE 4 than its original"
	}
	return ""
}
