package configs

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// field is how a struct's field is reached from its key.
type field struct {
	index  []int
	secret bool
	base   bool // names the file that the struct's other keys are laid over
}

// fieldsOf gives the keys a struct knows, with those of inlined structs.
func fieldsOf(t reflect.Type) map[string]field {
	fields := make(map[string]field, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		secret := f.Tag.Get("secret") == "true"
		if strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct {
			for key, inner := range fieldsOf(f.Type) {
				if _, taken := fields[key]; !taken {
					fields[key] = field{index: append([]int{i}, inner.index...), secret: secret || inner.secret, base: inner.base}
				}
			}
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		fields[name] = field{index: []int{i}, secret: secret, base: f.Tag.Get("base") == "true"}
	}
	return fields
}

// unknownKey is the rule of a key nobody knows: with the nearest key there is, else with all of them.
func unknownKey(key string, fields map[string]field) string {
	known := slices.Sorted(maps.Keys(fields))
	best, distance := "", len(key)
	for _, candidate := range known {
		if d := editDistance(key, candidate); d < distance {
			best, distance = candidate, d
		}
	}
	switch {
	case best != "" && distance <= max(2, len(best)/3):
		return "unknown key; did you mean " + best + "?"
	case len(known) == 0:
		return "unknown key; there are none here"
	}
	return "unknown key; known here: " + strings.Join(known, ", ")
}

// maxCompared bounds the keys whose distance is worked out; a longer one is no misspelling.
const maxCompared = 100

// editDistance counts the letters to insert, delete or replace to turn a into b.
func editDistance(a, b string) int {
	if len(a) > maxCompared || len(b) > maxCompared {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
