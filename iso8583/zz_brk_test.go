package iso8583

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

const canaryPAN = "4539578763621486"
const canary19 = "6304578763621486124"
const canaryTrack = "4539578763621486=29121019876543254321"

func leaks(text string) string {
	flat := strings.Map(func(r rune) rune { if r >= '0' && r <= '9' { return r }; return -1 }, text)
	_ = flat
	for _, secret := range []string{"95787636214", "45787636214861", "29121019876543254321", "1019876543254321", "B4539578763621486"} {
		for i := 0; i+7 <= len(secret); i++ {
			if strings.Contains(text, secret[i:i+7]) {
				return secret[i : i+7]
			}
		}
	}
	return ""
}

func canaryMessages(s *Spec, t *testing.T) [][]byte {
	var out [][]byte
	mtis := []MTI{0x0100, 0x0420}
	if s.Edition() == Edition1993 {
		mtis = []MTI{0x1100, 0x1420}
	}
	for _, mti := range mtis {
		for _, pan := range []string{canaryPAN, canary19, canaryPAN[:15]} {
			m := s.NewMessage(mti)
			set := func(e Element, v string) {
				if err := m.Set(e, v); err != nil {
					if l := leaks(err.Error()); l != "" { t.Errorf("set %s leaks %s", e, l) }
				}
			}
			set(2, pan); set(3, "000000"); set(4, "000000001050"); set(7, "0102030405"); set(11, "000123")
			set(12, "030405"); set(12, "240102030405")
			set(35, pan+"=29121019876543254321"[:min(21, 37-len(pan))])
			set(37, "000000000123"); set(41, "TERM0001"); set(42, "MERCHANT0000001"); set(43, fmt.Sprintf("%-40s", "SHOP")); set(48, pan); set(49, "978")
			set(45, "B"+pan+"^DOE/JOHN^2912101987654325432")
			set(34, pan); set(102, pan); set(120, pan)
			m.SetBytes(52, []byte("12345678"))
			m.SetBytes(55, append([]byte{0x5A, 8}, []byte{0x45, 0x39, 0x57, 0x87, 0x63, 0x62, 0x14, 0x86}...))
			b, err := s.Encode(m)
			if err != nil { t.Fatal(err) }
			out = append(out, b)
			for _, e := range m.Elements() { // leave some out
				v := m.Bytes(e)
				m.Unset(e)
				if b, err := s.Encode(m); err == nil { out = append(out, b) }
				if s.IsBinary(e) { m.SetBytes(e, v) } else { m.Set(e, string(v)) }
			}
			short := s.NewMessage(mti)
			short.Set(2, pan)
			short.Set(4, "000000001050")
			b, _ = s.Encode(short)
			out = append(out, b)
		}
	}
	return out
}

func TestZZCanary(t *testing.T) {
	var specs []*Spec
	for _, d := range Dialects() {
		for _, bm := range []BitmapForm{BitmapBinary, BitmapHex} {
			s, err := SpecConfig{Dialect: d, Bitmap: bm}.Build()
			if err != nil { t.Fatal(err) }
			specs = append(specs, s)
		}
	}
	n, clean := 0, 0
	seen := map[string]int{}
	for i, from := range specs {
		for _, whole := range canaryMessages(from, t) {
			var variants [][]byte
			for cut := 0; cut <= len(whole); cut++ { variants = append(variants, whole[:cut]) }
			for off := 1; off < 40 && off < len(whole); off++ { variants = append(variants, whole[off:]) }
			// MTI of the other kinds in front, bit flips in bitmap
			for bit := 0; bit < 64; bit++ {
				v := bytes.Clone(whole)
				at := from.mtiSize()
				v[at+bit/8] ^= 1 << (bit % 8)
				variants = append(variants, v)
			}
			for j, to := range specs {
				for _, v := range variants {
					n++
					x := to.Explain(v)
					text := x.String()
					if l := leaks(text); l != "" {
						key := fmt.Sprintf("explain %d->%d", i, j)
						if seen[key]++; seen[key] == 1 { t.Errorf("%s %s leaks %s:\n%s\n%d of %d", key, to.dialect.name, l, text, len(v), len(whole)) }
					}
					m, err := to.Decode(v)
					if err != nil {
						if l := leaks(err.Error()); l != "" { t.Errorf("decode leaks %s", l) }
					} else {
						clean++
						if l := leaks(m.Image()); l != "" {
							key := fmt.Sprintf("image %d->%d", i, j)
							if seen[key]++; seen[key] == 1 { t.Errorf("%s leaks %s:\n%s", key, l, m.Image()) }
						}
					}
				}
			}
		}
	}
	t.Log(n, clean, seen)
}
