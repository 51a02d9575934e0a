package configs

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxFaults bounds how many faults are printed; past it only their number is.
	maxFaults = 100
	// maxValueRunes bounds how much of an offending value is quoted.
	maxValueRunes = 60
)

// Fault is one thing wrong with a configuration file.
type Fault struct {
	File   string // as given to Load or Locate
	Line   int    // from 1; 0 while unknown
	Column int    // from 1; 0 while unknown
	Path   string // dotted key, like links.visa.echo_interval; list items by index, like links.0.name; "" for the file itself
	Value  string // the offending value, quoted and shortened; "" where there is none, or where it is a secret
	Rule   string // what a right value is, or what is wrong, in words
}

// String gives the fault in one line: `schemegate.yaml:12: links.visa.echo_interval: "10": a duration needs a unit, like 10s`.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		b.WriteString(":" + strconv.Itoa(f.Line))
	}
	for _, part := range []string{f.Path, f.Value, f.Rule} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// Faults collects everything wrong with a configuration. It is an error when it is not empty: see Err.
type Faults []Fault

// Add notes that the value at a dotted path breaks a rule; for Validate methods. A nil value is one that is missing or must not
// be quoted. Secrets are never to be given as values.
func (f *Faults) Add(path, rule string, value any) {
	*f = append(*f, Fault{Path: path, Value: quote(value), Rule: rule})
}

// AddError adds what an error joins, each as a fault of its own; nil adds none. Where an error's text begins with a key, as in
// "length: binary2 or ascii4", the fault is that of the key below path.
func (f *Faults) AddError(path string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, each := range joined.Unwrap() {
			f.AddError(path, each)
		}
		return
	}
	rule := err.Error()
	if key, rest, found := strings.Cut(rule, ": "); found && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_.") == "" {
		path, rule = strings.Trim(path+"."+key, "."), rest
	}
	f.Add(path, rule, nil)
}

// Error gives one line a fault, at most maxFaults of them.
func (f Faults) Error() string {
	lines := make([]string, 0, min(len(f), maxFaults)+1)
	for i, fault := range f {
		if i == maxFaults {
			lines = append(lines, fmt.Sprintf("and %d more", len(f)-maxFaults))
			break
		}
		lines = append(lines, fault.String())
	}
	return strings.Join(lines, "\n")
}

// Err gives the faults as an error, nil when there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Unreadable reports whether the file itself could not be read, so that nothing of it is known.
func (f Faults) Unreadable() bool {
	return slices.ContainsFunc(f, func(fault Fault) bool { return fault.Path == "" && strings.HasPrefix(fault.Rule, unreadableRule) })
}

// sort orders faults by file and as a reader meets them; those without a line come first, those of one place by path.
func (f Faults) sort() {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
}

// quote prints a value as a fault shows it: always in quotation marks, so that an empty text or a trailing space can be seen.
func quote(value any) string {
	if value == nil {
		return ""
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer && v.IsNil() {
		return ""
	}
	if _, ok := value.(Secret); ok {
		return ""
	}
	text := fmt.Sprint(value)
	if utf8.RuneCountInString(text) > maxValueRunes {
		text = string([]rune(text)[:maxValueRunes]) + "…"
	}
	return strconv.Quote(text)
}
