package api

import (
	"bytes"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/iso8583"
)

// copies is how many clients send the same request at once.
const copies = 200

// atOnce sends one request from many clients at the same moment. All get the same answer, and only one of them is no repeat.
func (b *bench) atOnce(t *testing.T, bearer, path string, body fields, status int) answer {
	t.Helper()
	answers, key := make([]answer, copies), uuid.NewString()
	start := make(chan struct{})
	var sent sync.WaitGroup
	for i := range answers {
		sent.Go(func() {
			<-start
			answers[i] = b.postAs(t, bearer, path, key, body)
		})
	}
	close(start)
	sent.Wait()
	fresh := 0
	for i, a := range answers {
		if a.status != status || !bytes.Equal(a.body, answers[0].body) || a.header.Get("Location") != answers[0].header.Get("Location") {
			t.Fatalf("%s: copy %d got %d %s, the first %d %s", path, i, a.status, a.body, answers[0].status, answers[0].body)
		}
		if a.header.Get("Idempotent-Replayed") == "" {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%s: %d answers are not marked as a repeat's, want 1", path, fresh)
	}
	return answers[0]
}

// TestCopiesAtOnceHaveOneEffect: of two hundred equal requests one is carried out, on every route that takes one.
func TestCopiesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	v, whole := b.authorize(t, "500.00", nil), b.authorize(t, "12.00", nil)
	capture := decode[duty](t, b.atOnce(t, b.key, pathOf(v)+"/captures", fields{"client_reference": "cap-1", "amount": "1.00", "final": false}, 201).body)
	b.awaitDuty(t, capture)
	b.awaitDuty(t, decode[duty](t, b.atOnce(t, b.key, pathOf(v)+"/reversals", fields{"amount": "2.00"}, 201).body))
	b.awaitDuty(t, decode[duty](t, b.atOnce(t, b.key, "/v1/reversals", fields{"client_reference": whole.ClientReference}, 201).body))
	b.atOnce(t, b.ops, linkPath+"/hold", fields{"reason": "all at once"}, 200)
	if captures, reversals := b.Sent(iso8583.MTIFinancialAdvice), b.Sent(iso8583.MTIReversalAdvice); captures != 1 || reversals != 2 {
		t.Errorf("%d completions and %d reversals reached the scheme, want 1 and 2", captures, reversals)
	}
	if duties, decisions := b.Count(t, `SELECT count(*) FROM duty`), b.Count(t, `SELECT count(*) FROM link_control_history`); duties != 3 || decisions != 1 {
		t.Errorf("%d duties and %d decisions, want 3 and 1", duties, decisions)
	}
	if read := b.get(t, pathOf(v)); !bytes.Contains(read.body, []byte(`"remaining_amount":"497.00"`)) {
		t.Errorf("it stands as %s", read.body)
	}
	b.CheckBooks(t)
}

// TestTombstoneOfCopiesAtOnce: two hundred reversals of something that has not come leave one tombstone.
func TestTombstoneOfCopiesAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	b.atOnce(t, b.key, "/v1/reversals", fields{"client_reference": "ref-early"}, 201)
	if n := b.Count(t, `SELECT count(*) FROM tombstone`); n != 1 {
		t.Errorf("%d tombstones", n)
	}
}
