package configs

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time in a configuration file, never negative: "250ms", "10s", "1m30s", "24h". A bare number is refused
// because nobody can tell seconds from milliseconds by looking at it.
type Duration time.Duration

// Std gives the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String prints the duration as ParseDuration reads it.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration as UnmarshalText reads it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration; its errors are rules, without the text.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// ParseDuration reads a duration with its unit (ns, us, ms, s, m, h). The error names the rule that the text breaks, not the text.
func ParseDuration(text string) (Duration, error) {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		if strings.HasPrefix(text, "-") {
			return 0, errors.New("a duration is not negative and needs a unit, like 10s")
		}
		return 0, errors.New("a duration needs a unit, like 10s")
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("a duration is a number with a unit (ms, s, m, h), like 10s or 1m30s")
	}
	if parsed < 0 {
		return 0, errors.New("a duration is not negative")
	}
	return Duration(parsed), nil
}
