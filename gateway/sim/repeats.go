package sim

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/schemegate/schemegate/iso8583"
)

// sending names a message and its repeats. DE 7 is no part of it, so that a repeat with another one is seen as such.
type sending struct {
	mti         iso8583.MTI
	stan        string
	acquirer    string
	forwarder   string
	networkCode string
}

// first is what the first sending had.
type first struct {
	time     string
	content  []elementSum
	sendings int
}

// elementSum is an element and a keyed sum of its value: the value itself may be card data, which is not kept.
type elementSum struct {
	element iso8583.Element
	sum     uint64
}

// repeats hold every repeat against the first sending that reached the scheme, whatever became of that one. It is safe for concurrent
// use.
type repeats struct {
	wire        *wire
	seed        maphash.Seed
	max         int
	refreshTime bool // a repeat may have a new DE 7

	mu     sync.Mutex // protects the following
	firsts map[sending]*first
	order  []sending // as they came, so that the oldest can make room
}

func newRepeats(w *wire, limit int, refreshTime bool) *repeats {
	return &repeats{wire: w, seed: maphash.MakeSeed(), max: limit, refreshTime: refreshTime, firsts: map[sending]*first{}}
}

// observed is what is known of a message when it comes.
type observed struct {
	key       HoldKey // its name, with the time of its first sending
	sendings  int     // this one included
	violation string  // in what a repeat differs from its first sending
}

// observe counts a message. One without the repeat bit under a new DE 7 begins anew: STANs come round.
func (r *repeats) observe(m *iso8583.Message) observed {
	key := sending{mti: r.wire.spec.Exchange(m.MTI()), stan: m.Get(iso8583.STAN), acquirer: m.Get(iso8583.AcquirerID),
		forwarder: m.Get(iso8583.ForwarderID), networkCode: r.wire.networkCode(m)}
	content := r.content(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	f, known := r.firsts[key]
	if !known {
		if len(r.order) >= r.max {
			delete(r.firsts, r.order[0])
			r.order = r.order[1:]
		}
		r.order = append(r.order, key)
	}
	if !known || !m.MTI().IsRepeat() && f.time != m.Get(r.wire.clock) {
		r.firsts[key] = &first{time: m.Get(r.wire.clock), content: content, sendings: 1}
		return observed{key: r.wire.key(m), sendings: 1}
	}
	f.sendings++
	o := observed{key: r.wire.key(m), sendings: f.sendings}
	o.key.TransmissionDateTime = f.time
	if m.MTI().IsRepeat() {
		o.violation = differences(f.content, content)
	}
	return o
}

// content sums up the business content of a message. A message authentication code is none: it covers the message type too.
func (r *repeats) content(m *iso8583.Message) []elementSum {
	elements := m.Elements()
	sums := make([]elementSum, 0, len(elements))
	for _, e := range elements {
		if e == iso8583.MAC || e == iso8583.MACSecondary || e == iso8583.TransmissionDateTime && r.refreshTime {
			continue
		}
		var sum uint64
		if r.wire.spec.IsBinary(e) {
			sum = maphash.Bytes(r.seed, m.Bytes(e))
		} else {
			sum = maphash.String(r.seed, m.Get(e))
		}
		sums = append(sums, elementSum{e, sum})
	}
	return sums
}

// differences names the elements in which a repeat differs from its first sending, "" for none. Both are in the elements' order.
func differences(before, now []elementSum) string {
	var elements []string
	note := func(e iso8583.Element) { elements = append(elements, fmt.Sprint(uint8(e))) }
	for len(before)+len(now) > 0 {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].element < now[0].element:
			note(before[0].element)
			before = before[1:]
		case len(before) == 0 || now[0].element < before[0].element:
			note(now[0].element)
			now = now[1:]
		default:
			if before[0].sum != now[0].sum {
				note(now[0].element)
			}
			before, now = before[1:], now[1:]
		}
	}
	if len(elements) == 0 {
		return ""
	}
	return "the repeat is not its first sending: DE " + strings.Join(elements, ", ")
}
