package link

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

func TestC7_OrderPerCardIsKeptUnderLoad(t *testing.T) {
	t.Parallel()
	const cards, perCard = 24, 20
	hosts := startHosts(t, 4, false)
	l, stop := startLines(t, linesConfig(hosts))
	var wg sync.WaitGroup
	results := make([][]<-chan error, cards)
	for card := range cards {
		wg.Go(func() {
			for i := range perCard {
				m := request(iso8583.MTIAuthorizationRequest, card*1000+i+1, "T1")
				results[card] = append(results[card], handOver(t, l, m, uint64(card+1), 2*patience))
			}
		})
	}
	wg.Wait()
	received := func() (n int) {
		for _, h := range hosts {
			n += h.count()
		}
		return n
	}
	eventually(t, "every call is received", func() bool { return received() == cards*perCard })
	lineOf := map[string]int{}
	next := map[string]string{}
	for number, h := range hosts {
		if h.count() == 0 {
			t.Errorf("line %d carried nothing", number)
		}
		for _, stan := range h.stans() {
			card := stan[:3]
			if line, seen := lineOf[card]; seen && line != number {
				t.Fatalf("card %s was sent over lines %d and %d", card, line, number)
			}
			lineOf[card] = number
			if stan <= next[card] {
				t.Fatalf("STAN %s was written after %s", stan, next[card])
			}
			next[card] = stan
		}
	}
	stop()
	for _, results := range results {
		for _, result := range results {
			requireLost(t, <-result, DownShutdown)
		}
	}
}

// TestAffinityKeepsItsOrderWhenTheLineIsLost: three messages of a card wait on a line that fails; another line gets them in their order.
func TestAffinityKeepsItsOrderWhenTheLineIsLost(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, true)
	l, _ := startLines(t, linesConfig(hosts))
	for round := range 10 {
		release := holdLine(t, l, 0)
		other := holdLine(t, l, 1)
		var results []<-chan error
		for i := range 5 {
			m := request(iso8583.MTIAuthorizationRequest, round*100+i+1, "T1")
			results = append(results, handOver(t, l, m, 7, patience))
		}
		l.mu.Lock()
		placed := l.affinities[7].socket.line.number
		l.mu.Unlock()
		before := hosts[1-placed].count()
		hosts[placed].last().Close()
		waitLines(t, l, 1)
		release()
		other()
		for i, result := range results {
			if err := <-result; err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		got := hosts[1-placed].stans()[before:]
		if len(got) != 5 || !slices.IsSorted(got) {
			t.Fatalf("written in the order %v", got)
		}
		waitLines(t, l, 2)
	}
}

// TestAffinityOfAnExpiredCallHoldsNobodyUp: the second of three messages may no longer be sent; the third goes after the first all the same.
func TestAffinityOfAnExpiredCallHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 1, true)
	l, _ := startLines(t, linesConfig(hosts))
	release := holdLine(t, l, 0)
	first := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), 7, patience)
	second := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), 7, 50*time.Millisecond)
	third := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 3, "T1"), 7, patience)
	requireNotSent(t, <-second, ErrExpired)
	if n := hosts[0].count(); n != 0 {
		t.Fatalf("%d requests written before the first", n)
	}
	release()
	for _, result := range []<-chan error{first, third} {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if got := hosts[0].stans(); !slices.Equal(got, []string{"000001", "000003"}) {
		t.Errorf("written in the order %v", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.affinities) != 0 || len(l.pending) != 0 {
		t.Errorf("%d affinities and %d calls are left", len(l.affinities), len(l.pending))
	}
}

func TestCallsOfOneAffinityAreBounded(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 1, true)
	l, _ := startLines(t, linesConfig(hosts))
	release := holdLine(t, l, 0)
	var results []<-chan error
	for i := range maxAffinityCalls {
		results = append(results, handOver(t, l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), 7, patience))
	}
	_, err := l.Exchange(t.Context(), Call{
		Body: encoded(request(iso8583.MTIAuthorizationRequest, maxAffinityCalls+1, "T1")), Deadline: time.Now().Add(patience), Affinity: 7,
	})
	requireNotSent(t, err, ErrTooManyPending)
	release()
	for _, result := range results {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
}
