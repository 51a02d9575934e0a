package link

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// writeQueue is a socket's write lock: who has the turn may write. Turns are granted in the order of enter, and waiting for one ends at
// a deadline; a sync.Mutex promises neither.
type writeQueue struct {
	mu      sync.Mutex // protects the following
	held    bool
	waiting list.List // of *turn; no longer than the pending calls and one answer
}

// turn is one place in a queue. The zero value is ready for enter, once.
type turn struct {
	granted chan struct{} // closed when the turn has come; nil when it came at once
	place   *list.Element // in the queue; nil once granted
}

// enter takes a place, at the front for what must not wait behind a full queue. It never blocks. Whoever enters calls leave.
func (q *writeQueue) enter(t *turn, front bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.held:
		q.held = true
	case front:
		t.granted = make(chan struct{})
		t.place = q.waiting.PushFront(t)
	default:
		t.granted = make(chan struct{})
		t.place = q.waiting.PushBack(t)
	}
}

// leave gives the turn or the place up, whichever it is.
func (q *writeQueue) leave(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.place != nil {
		q.waiting.Remove(t.place)
		t.place = nil
		return
	}
	front := q.waiting.Front()
	if front == nil {
		q.held = false
		return
	}
	next := q.waiting.Remove(front).(*turn)
	next.place = nil
	close(next.granted)
}

// awaitTurn waits for a place's turn until sendBefore. It leaves the place as it is: the caller calls leave, also after an error.
func (s *socket) awaitTurn(ctx context.Context, t *turn, sendBefore time.Time) error {
	if t.granted == nil {
		return nil
	}
	return await(ctx, t.granted, s.done, sendBefore)
}

// awaitDue waits until the outbound rate allows the write.
func (s *socket) awaitDue(ctx context.Context, due, sendBefore time.Time) error {
	wait := time.Until(due)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	return await(ctx, timer.C, s.done, sendBefore)
}

// await waits for a signal before the write; every error proves that no write was begun.
func await[T any](ctx context.Context, signal <-chan T, done <-chan struct{}, sendBefore time.Time) error {
	select {
	case <-signal:
		return nil
	default:
	}
	timer := time.NewTimer(time.Until(sendBefore))
	defer timer.Stop()
	select {
	case <-signal:
		return nil
	case <-timer.C:
		return ErrExpired
	case <-ctx.Done():
		return &notSentError{text: "wait for the write", cause: context.Cause(ctx)}
	case <-done:
		return ErrDown
	}
}
