package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// dump is a hex dump being read. Its errors name lines and never quote: what is dumped may be card data.
type dump struct {
	digits  strings.Builder
	canon   bool  // lines of hexdump -C came, so a last line of an offset alone is its end
	shifted bool  // the first offset has come
	first   int64 // what it was
}

// parseDump reads hexadecimal digits with any spaces and line ends between them, and what xxd, hexdump -C and tcpdump -X print.
func parseDump(text string) ([]byte, error) {
	var d dump
	n := 0
	for line := range strings.Lines(text) {
		n++
		if err := d.line(strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if d.digits.Len() == 0 {
		return nil, errors.New("there are no digits")
	}
	raw, err := hex.DecodeString(d.digits.String())
	if err != nil {
		return nil, errors.New("an odd number of digits")
	}
	return raw, nil
}

func (d *dump) line(line string) error {
	first, _, _ := strings.Cut(line, " ")
	switch {
	case line == "":
		return nil
	case line == "*":
		return errors.New("the dump leaves out repeated lines: make it with hexdump -vC")
	case strings.HasSuffix(first, ":"): // xxd and tcpdump -X: offset and a colon, digits, two spaces, text
		line, _, _ = strings.Cut(strings.TrimSpace(line[len(first):]), "  ")
		return d.add(strings.TrimSuffix(first, ":"), line)
	case strings.Contains(line, "|"): // hexdump -C: offset, digits, text between bars
		d.canon = true
		line, _, _ = strings.Cut(line[len(first):], "|")
		return d.add(first, line)
	case d.canon && first == line:
		return d.add(first, "")
	}
	return d.add("", line)
}

// add takes the digits of a line whose offset, where it has one, must continue what came before.
func (d *dump) add(offset, digits string) error {
	if offset != "" {
		at, err := strconv.ParseInt(strings.TrimPrefix(offset, "0x"), 16, 64)
		if err != nil {
			return errors.New("the offset in front is not hexadecimal")
		}
		if !d.shifted {
			d.shifted, d.first = true, at
		}
		if have := int64(d.digits.Len() / 2); at-d.first != have {
			return fmt.Errorf("the offset says that %d bytes came before, and %d did", at-d.first, have)
		}
	}
	for _, field := range strings.FieldsFunc(digits, func(r rune) bool { return strings.ContainsRune(" \t,:-", r) }) {
		field = strings.TrimPrefix(field, "0x")
		for _, c := range []byte(field) {
			if !strings.ContainsRune("0123456789abcdefABCDEF", rune(c)) {
				return errors.New("a character is no hexadecimal digit")
			}
		}
		d.digits.WriteString(field)
	}
	return nil
}
