package ledger

import (
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxPage is the largest page a list returns.
const MaxPage = 500

// maxCursorBytes is longer than any cursor this package makes.
const maxCursorBytes = 128

// ErrCursor says that a cursor was not made by the list it was given to.
var ErrCursor = errors.New("cursor is not valid")

func clampLimit(limit int) int { return min(max(limit, 1), MaxPage) }

func encodeCursor(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func decodeCursor(cursor string) (string, error) {
	if len(cursor) > maxCursorBytes {
		return "", ErrCursor
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return "", ErrCursor
	}
	return string(text), nil
}

func parseAccountCursor(cursor string) (before int32, err error) {
	if cursor == "" {
		return math.MaxInt32, nil
	}
	text, err := decodeCursor(cursor)
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil || id < 1 {
		return 0, ErrCursor
	}
	return int32(id), nil
}

// entryPosition is a place in the list of an account's entries: by time of booking, then by id.
type entryPosition struct {
	bookedAt time.Time
	id       int64
}

func (p entryPosition) cursor() string {
	return encodeCursor(strconv.FormatInt(p.bookedAt.UnixMicro(), 10) + "." + strconv.FormatInt(p.id, 10))
}

func parseEntryCursor(cursor string) (entryPosition, error) {
	text, err := decodeCursor(cursor)
	if err != nil {
		return entryPosition{}, err
	}
	micros, id, found := strings.Cut(text, ".")
	at, errAt := strconv.ParseInt(micros, 10, 64)
	number, errID := strconv.ParseInt(id, 10, 64)
	if !found || errAt != nil || errID != nil || number < 1 {
		return entryPosition{}, ErrCursor
	}
	return entryPosition{bookedAt: time.UnixMicro(at).UTC(), id: number}, nil
}
