package gateway_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// forms are the ways a secret could be written down: clear, hexadecimal, and base64 at each of its three alignments.
func forms(secret string) [][]byte {
	all := [][]byte{[]byte(secret), []byte(hex.EncodeToString([]byte(secret))), []byte(strings.ToUpper(hex.EncodeToString([]byte(secret))))}
	if raw, err := hex.DecodeString(secret); err == nil && len(raw) >= 6 {
		all = append(all, raw, []byte(strings.ToLower(secret)), []byte(strings.ToUpper(secret)))
	}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), secret...))
		first := (shift*8 + 5) / 6 // whole characters of the secret alone
		last := (shift + len(secret)) * 8 / 6
		all = append(all, []byte(encoded[first:last]))
	}
	return all
}

// holds tells whether a text holds a secret in any of its forms.
func holds(text, secret string) bool {
	for _, form := range forms(secret) {
		if bytes.Contains([]byte(text), form) {
			return true
		}
	}
	return false
}
