package reversal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// maxReasonRunes bounds an operator's reason.
	maxReasonRunes = 200
	// minCardDigits in a row may be a card number, which no reason may hold: history is never erased.
	minCardDigits = 13
)

// Refusals of Resume.
var (
	ErrNotFound     = errors.New("there is no such reversal or capture")
	ErrNotSuspended = errors.New("only a suspended one can be resumed")
)

// Resume makes a suspended duty owed again, by a person's decision: due at once, its attempts kept, its open exceptions closed,
// and the reason in its history. Everything happens in the caller's transaction. It returns ErrNotFound, an error that wraps
// ErrNotSuspended, or what is wrong with the reason.
func Resume(ctx context.Context, tx pgx.Tx, id uuid.UUID, reason string, now time.Time) error {
	reason = strings.TrimSpace(reason)
	if err := CheckReason(reason); err != nil {
		return err
	}
	state, err := selectStateForUpdate(ctx, tx, id)
	if err != nil {
		return err
	}
	to, err := Next(state, EventResumed)
	if err != nil {
		return fmt.Errorf("it is %s: %w", state, ErrNotSuspended)
	}
	return updateResumed(ctx, tx, id, state, to, reason, now)
}

// CheckReason holds a person's reason against the rules of what is never erased: one line, bounded, without anything like a card
// number. The error never quotes the reason, which may hold what it must not.
func CheckReason(reason string) error {
	switch {
	case reason == "":
		return errors.New("a reason is required")
	case !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("a reason is one line of printable text")
	case utf8.RuneCountInString(reason) > maxReasonRunes:
		return fmt.Errorf("a reason has at most %d characters", maxReasonRunes)
	case mayHoldCardNumber(reason):
		return fmt.Errorf("the reason holds %d digits in a row, which may be a card number", minCardDigits)
	}
	return nil
}

// mayHoldCardNumber looks for digits in a row, also in the groups that people write card numbers in.
func mayHoldCardNumber(text string) bool {
	run := 0
	for _, r := range text {
		switch {
		case unicode.IsDigit(r):
			run++
		case r != ' ' && r != '-':
			run = 0
		}
		if run >= minCardDigits {
			return true
		}
	}
	return false
}
