package iso8583

import (
	"bufio"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const (
	testPAN    = "4111111111111111"
	testTrack2 = "4111111111111111D29122011234567890"
)

// golden is one file of testdata/golden: a message, and its bytes as they were written down without this package's help.
type golden struct {
	name     string
	dialect  Dialect
	bitmap   BitmapForm
	elements map[Element]ElementConfig
	mti      MTI
	values   map[Element]string // binary ones as bytes
	body     []byte
}

func loadGolden(t testing.TB) []golden {
	t.Helper()
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden frames: %v", err)
	}
	all := make([]golden, 0, len(files))
	for _, file := range files {
		all = append(all, readGolden(t, file))
	}
	return all
}

// loadDialects are the same for the dialects other than 1987 in ASCII.
func loadDialects(t testing.TB) []golden {
	t.Helper()
	files, err := filepath.Glob("testdata/dialects/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden frames: %v", err)
	}
	all := make([]golden, 0, len(files))
	for _, file := range files {
		all = append(all, readGolden(t, file))
	}
	return all
}

// spec is the golden frame's dialect.
func (g golden) spec(t testing.TB) *Spec {
	t.Helper()
	return built(t, SpecConfig{Dialect: g.dialect, Bitmap: g.bitmap, Elements: g.elements})
}

func readGolden(t testing.TB, file string) golden {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g := golden{name: strings.TrimSuffix(filepath.Base(file), ".txt"), values: map[Element]string{}, elements: map[Element]ElementConfig{}}
	inBody, lines := false, bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), " ")
		switch {
		case inBody:
			g.body = append(g.body, fromHex(t, lines.Text())...)
		case key == "#":
		case key == "dialect":
			g.dialect = Dialect(value)
		case key == "element": // its number, then an ElementConfig
			number, config, _ := strings.Cut(value, " ")
			var e Element
			var c ElementConfig
			noError(t, e.UnmarshalText([]byte(number)))
			noError(t, yaml.UnmarshalWithOptions([]byte(config), &c, yaml.Strict()))
			g.elements[e] = c
		case key == "bitmap":
			g.bitmap = BitmapForm(value)
		case key == "mti":
			g.mti, err = ParseMTI(value)
			noError(t, err)
		case key == "body":
			inBody = true
		default:
			n, err := strconv.Atoi(key)
			noError(t, err)
			if strings.HasPrefix(value, `"`) {
				g.values[Element(n)], err = strconv.Unquote(value)
				noError(t, err)
				continue
			}
			g.values[Element(n)] = string(fromHex(t, value))
		}
	}
	noError(t, lines.Err())
	return g
}

func goldenBody(t testing.TB, name string) []byte {
	t.Helper()
	return readGolden(t, filepath.Join("testdata", "golden", name+".txt")).body
}

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	noError(t, err)
	return b
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setAll sets text and binary values alike.
func setAll(t testing.TB, m *Message, values map[Element]string) {
	t.Helper()
	for e, value := range values {
		if m.spec.IsBinary(e) {
			noError(t, m.SetBytes(e, []byte(value)))
			continue
		}
		noError(t, m.Set(e, value))
	}
}

func encoded(t testing.TB, s *Spec, mti MTI, values map[Element]string) []byte {
	t.Helper()
	m := s.NewMessage(mti)
	setAll(t, m, values)
	body, err := s.Encode(m)
	noError(t, err)
	return body
}

// built is the spec of a profile that must be right.
func built(t testing.TB, cfg SpecConfig) *Spec {
	t.Helper()
	s, err := cfg.Build()
	noError(t, err)
	return s
}

// refusesElement demands an error that names the element and holds none of the forbidden texts.
func refusesElement(t testing.TB, err error, e Element, forbidden ...string) {
	t.Helper()
	element, ok := errors.AsType[*ElementError](err)
	if !ok || element.Element != e {
		t.Fatalf("error %v, want one about %s", err, e)
	}
	for _, text := range forbidden {
		if strings.Contains(err.Error(), text) {
			t.Errorf("the error shows %q: %v", text, err)
		}
	}
}

// raw puts a body of a binary bitmap together by hand, for what Encode would refuse to write.
func raw(mti string, parts ...any) []byte {
	var bitmap [2]uint64
	var data []byte
	for i := 0; i < len(parts); i += 2 {
		n := parts[i].(int) - 1
		bitmap[n/64] |= firstBit >> (n % 64)
		data = append(data, parts[i+1].(string)...)
	}
	body := []byte(mti)
	if bitmap[1] != 0 {
		bitmap[0] |= firstBit
	}
	for half, word := range bitmap {
		if half == 1 && bitmap[0]&firstBit == 0 {
			break
		}
		for shift := 56; shift >= 0; shift -= 8 {
			body = append(body, byte(word>>shift))
		}
	}
	return append(body, data...)
}
