package link

import (
	"slices"
	"testing"
)

// isGranted reports whether a turn has come.
func isGranted(t *turn) bool {
	if t.granted == nil {
		return true
	}
	select {
	case <-t.granted:
		return true
	default:
		return false
	}
}

func TestTurnsAreGrantedInTheOrderOfEntering(t *testing.T) {
	t.Parallel()
	var q writeQueue
	turns := make([]turn, 6)
	for i := range turns {
		q.enter(&turns[i], i == 5)
	}
	q.leave(&turns[2]) // gives up its place before its turn
	var order []int
	for range 5 {
		at := slices.IndexFunc(turns, func(t turn) bool { return isGranted(&t) })
		if at < 0 {
			t.Fatal("nobody has the turn")
		}
		for i := range turns {
			if i != at && isGranted(&turns[i]) {
				t.Fatalf("%d and %d have the turn", at, i)
			}
		}
		order = append(order, at)
		q.leave(&turns[at])
		turns[at].granted = make(chan struct{}) // not counted again
	}
	if want := []int{0, 5, 1, 3, 4}; !slices.Equal(order, want) {
		t.Errorf("granted in the order %v, want %v", order, want)
	}
	var last turn
	if q.enter(&last, false); !isGranted(&last) {
		t.Error("a queue that everybody left is still held")
	}
}

// TestTurnGivenUpWhenGrantedIsHandedOn: its deadline passed in the moment it was granted.
func TestTurnGivenUpWhenGrantedIsHandedOn(t *testing.T) {
	t.Parallel()
	var q writeQueue
	var first, second, third turn
	q.enter(&first, false)
	q.enter(&second, false)
	q.enter(&third, false)
	q.leave(&first)
	if !isGranted(&second) || isGranted(&third) {
		t.Fatal("the second does not have the turn alone")
	}
	q.leave(&second)
	if !isGranted(&third) {
		t.Error("the third was forgotten")
	}
}
