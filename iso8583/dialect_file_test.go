package iso8583

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/configs"
)

var update = flag.Bool("update", false, "write the dialect files of configs/dialects anew")

func dialectFile(name Dialect) string {
	return filepath.Join("..", "configs", "dialects", string(name)+".yaml")
}

func keyOf[T comparable](byName map[string]T, value T) string {
	for name, v := range byName {
		if v == value {
			return name
		}
	}
	return ""
}

// elementLine is one element's line of a dialect file, with every key that says something of it.
func elementLine(e Element, r rule, name string) string {
	keys := []string{"format: " + keyOf(formatsByName, r.format), "length: " + strconv.Itoa(int(r.length)), "prefix: " + keyOf(prefixesByName, r.prefix),
		"encoding: " + keyOf(codingsByName, r.coding)}
	if r.prefix != fixed {
		keys = append(keys, "length_encoding: "+keyOf(codingsByName, r.lengthCoding))
	}
	if r.coding == packed {
		if r.prefix != fixed {
			keys = append(keys, "length_unit: "+map[bool]string{true: unitBytes, false: unitDigits}[r.countsBytes])
		}
		keys = append(keys, "filler: "+keyOf(fillersByName, r.filler))
	}
	return fmt.Sprintf("  %-4s {%s}  # %s\n", strconv.Itoa(int(e))+":", strings.Join(keys, ", "), name)
}

var dialectTitles = map[Dialect]string{
	Dialect1987ASCII:  "ISO 8583:1987 in ASCII: text, digits and lengths are characters.",
	Dialect1987BCD:    "ISO 8583:1987, packed: message type, digits, tracks and lengths are binary coded decimal, two digits a byte; text is ASCII.",
	Dialect1987EBCDIC: "ISO 8583:1987 in EBCDIC, code page 037: text, digits and lengths are characters.",
	Dialect1993ASCII:  "ISO 8583:1993 in ASCII: text, digits and lengths are characters.",
	Dialect1993BCD:    "ISO 8583:1993, packed: message type, digits, tracks and lengths are binary coded decimal, two digits a byte; text is ASCII.",
}

const dialectHead = `# %s
#
# The built-in dialect %s, written out. Copy this file, change what your scheme does differently, and name the copy in the link:
#
#   spec: {file: my-scheme.yaml}     # relative to the configuration; keys beside file are laid over it
#
# Check it with   schemegate spec lint my-scheme.yaml
# and read a dump with   xxd message.bin | schemegate spec decode --file my-scheme.yaml -
#
# Delete what you do not change: what is left out is as in the dialect named below.

# The built-in table that everything else is laid over. It also decides how the message type itself stands on the wire.
dialect: %s

# 8 bytes for each bitmap, or hex: 16 characters.
bitmap: %s

# Message types accepted and sent; each request with its response, each repeat with what it repeats.
mtis: [
%s,
]

# Answers whose type is not the standard's, by the request's type: {"1460": "1480", "0370": "0360"}.
response_mtis: {}

# What a response code (DE 39) means for an authorisation, where the scheme differs from the table: approved, partially_approved,
# declined, still_working, not_signed_on or outcome_unknown. A code in no table is outcome_unknown, and the authorisation is reversed.
response_codes: {}

# The same for the answer to a reversal: acknowledged, nothing_to_undo, retry_later or suspend. A code in no table suspends.
reversal_response_codes: {}

# Every data element.
#
#   format           n digits; an letters, digits and spaces; ans printable characters; z a track; x+n C or D and then digits; b bytes;
#                    tlv bytes that must be well-formed BER-TLV
#   length           exact for a fixed one, otherwise the most: characters, or bytes of b and tlv
#   prefix           fixed, or digits of length in front: l, ll, lll
#   encoding         ascii, ebcdic or bcd (n, z and x+n only); binary for b and tlv
#   length_encoding  of the length in front: ascii, ebcdic, bcd or binary (one byte for l and ll, two for lll)
#   length_unit      what the length in front of a bcd value counts: digits or bytes
#   filler           of an odd number of bcd digits: left-zero (0123) or right-f (123F)
#   absent: true     the scheme does not have it: a message with it is refused
elements:
`

// mtiLines lists types with one exchange a line.
func mtiLines(mtis []MTI) string {
	var b strings.Builder
	for i, m := range mtis {
		switch {
		case i == 0:
			b.WriteString("  ")
		case m.Exchange() != mtis[i-1].Exchange():
			b.WriteString(",\n  ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", m.String())
	}
	return b.String()
}

func dialectText(s *Spec, name Dialect) string {
	var b strings.Builder
	fmt.Fprintf(&b, dialectHead, dialectTitles[name], name, name, s.bitmap, mtiLines(s.mtis))
	for e := firstElement; e <= lastElement; e++ {
		if r := s.rules[e]; r.format != noFormat {
			b.WriteString(elementLine(e, r, s.ElementName(e)))
		} else if e.Valid() {
			fmt.Fprintf(&b, "  %-4s {absent: true}\n", strconv.Itoa(int(e))+":")
		}
	}
	return b.String()
}

// TestDialectFilesAreTheBuiltInTables holds the files that users copy against the tables, element by element. So that the file itself says
// everything, it is also laid over the other dialects of its edition.
func TestDialectFilesAreTheBuiltInTables(t *testing.T) {
	t.Parallel()
	for _, name := range Dialects() {
		want := built(t, SpecConfig{Dialect: name})
		if *update {
			noError(t, os.WriteFile(dialectFile(name), []byte(dialectText(want, name)), 0o644))
		}
		text, err := os.ReadFile(dialectFile(name))
		noError(t, err)
		var cfg SpecConfig
		noError(t, configs.Load(dialectFile(name), text, &cfg).Err())
		if cfg.Dialect != name || len(cfg.MTIs) == 0 || cfg.Bitmap == "" {
			t.Errorf("%s: dialect %q, %d message types, bitmap %q", name, cfg.Dialect, len(cfg.MTIs), cfg.Bitmap)
		}
		sameSpec(t, string(name), want, built(t, cfg))
		for _, other := range Dialects() {
			base := built(t, SpecConfig{Dialect: other})
			if base.Edition() != want.Edition() {
				continue
			}
			cfg.Dialect = other
			over := built(t, cfg)
			over.dialect, over.exposures = want.dialect, want.exposures // what no file can say
			for e := range over.rules {
				over.rules[e].signCoding = want.rules[e].signCoding // neither
			}
			sameSpec(t, fmt.Sprintf("%s over %s", name, other), want, over)
		}
		checkComments(t, string(text), want)
	}
}

func sameSpec(t *testing.T, what string, want, got *Spec) {
	t.Helper()
	for e := firstElement; e <= lastElement; e++ {
		g, w := got.rules[e], want.rules[e]
		if g.prefix == fixed && w.prefix == fixed { // no length stands in front
			g.lengthCoding = w.lengthCoding
		}
		if g != w {
			t.Errorf("%s: %s is %+v, want %+v", what, e, g, w)
		}
	}
	if got.bitmap != want.bitmap || !slices.Equal(got.mtis, want.mtis) || len(got.responses) != len(want.responses) || got.dialect != want.dialect ||
		got.exposures != want.exposures || !maps.Equal(got.authorization, want.authorization) || !maps.Equal(got.reversal, want.reversal) {
		t.Errorf("%s: differs in bitmap, types, codes or what people may see", what)
	}
}

// checkComments: every key of a dialect stands in the file, and every element with its name.
func checkComments(t *testing.T, text string, s *Spec) {
	t.Helper()
	for i := range reflect.TypeFor[SpecConfig]().NumField() {
		key := reflect.TypeFor[SpecConfig]().Field(i).Tag.Get("yaml")
		if !strings.Contains(text, "\n"+key+":") && !strings.Contains(text, "{"+key+":") {
			t.Errorf("%s: nothing about %s", s.dialect.name, key)
		}
	}
	for i := range reflect.TypeFor[ElementConfig]().NumField() {
		if key := reflect.TypeFor[ElementConfig]().Field(i).Tag.Get("yaml"); !strings.Contains(text, "#   "+key) {
			t.Errorf("%s: nothing about %s", s.dialect.name, key)
		}
	}
	for e := firstElement; e <= lastElement; e++ {
		if name := s.ElementName(e); s.rules[e].format != noFormat && !strings.Contains(text, "# "+name+"\n") {
			t.Errorf("%s: %s has no name", s.dialect.name, e)
		}
	}
}
