package main

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func TestParseDumpTakesWhatToolsPrint(t *testing.T) {
	t.Parallel()
	want := []byte("0800\x00\x20\x00\x00\x00\x00\x00\x00000001|: ") // text of its own that looks like a dump
	plain := hex.EncodeToString(want)
	for name, text := range map[string]string{
		"plain":       plain,
		"upper case":  strings.ToUpper(plain),
		"spaces":      "3038 3030 00 20 0000 0000 0000\n\n  3030303030 31 7C3A20\r\n",
		"colons":      "30:38:30:30:00:20:00:00:00:00:00:00:30:30:30:30:30:31:7c:3a:20",
		"0x":          "0x30 0x38 0x30 0x30 0x00, 0x20, 0 0 0000 0000 00 303030303031 7c3a20",
		"od -An -tx1": " 30 38 30 30 00 20 00 00 00 00 00 00 30 30 30 30\n 30 31 7c 3a 20\n",
		"xxd":         "00000000: 3038 3030 0020 0000 0000 0000 3030 3030  0800. ......0000\n00000010: 3031 7c3a 20                             01: \n",
		"xxd -g1":     "00000000: 30 38 30 30 00 20 00 00 00 00 00 00 30 30 30 30  0800. ......0000\n00000010: 30 31 7c 3a 20                                   01: \n",
		"hexdump -C":  "00000000  30 38 30 30 00 20 00 00  00 00 00 00 30 30 30 30  |0800. ......0000|\n00000010  30 31 7c 3a 20                                    |01|: |\n00000015\n",
		"tcpdump -X":  "\t0x0036:  3038 3030 0020 0000 0000 0000 3030 3030  0800............\n\t0x0046:  3031 7c3a 20                             01|:.\n",
	} {
		got, err := parseDump(text)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
}

func TestParseDumpNamesLinesAndNeverQuotes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                       "there are no digits",
		"\n \n":                                  "there are no digits",
		"303":                                    "an odd number of digits",
		"30\n4111zz\n":                           "line 2: a character is no hexadecimal digit",
		"411111111111111G: 30":                   "line 1: the offset in front is not hexadecimal",
		"00000000  30 |0|\n*\n":                  "line 2: the dump leaves out repeated lines",
		"00000000  30 |0|\n00000010  31 |1|":     "line 2: the offset says that 16 bytes came before, and 1 did",
		"00000000: 3030\n00000001: 3030":         "line 2: the offset says that 1 bytes came before, and 2 did",
		"00000000  30 31  |01|\n00000003":        "line 2: the offset says that 3 bytes came before, and 2 did",
		"30 ٣0":                                  "line 1: a character is no hexadecimal digit",
		"00000000: 3030 3030\nffffffffffffffff:": "line 2: the offset in front is not hexadecimal",
	} {
		raw, err := parseDump(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "4111") {
			t.Errorf("%q: %x, %v, want %s", text, raw, err, want)
		}
	}
}

func FuzzParseDump(f *testing.F) {
	f.Add("00000000: 3038  08\n")
	f.Add("00000000  30 |0|\n00000001\n")
	f.Add("*")
	f.Fuzz(func(t *testing.T, text string) {
		raw, err := parseDump(text)
		if err == nil && (len(raw) == 0 || len(raw) > len(text)) {
			t.Fatalf("%d bytes out of %d characters", len(raw), len(text))
		}
	})
}
