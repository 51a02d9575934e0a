package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// randomVault opens a vault with fresh keys.
func randomVault(t *testing.T) *Vault {
	t.Helper()
	dir := t.TempDir()
	secret := func(name string) configs.Secret {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(NewVaultKey()), 0o600); err != nil {
			t.Fatal(err)
		}
		return configs.Secret{File: file}
	}
	v, err := OpenVault(VaultConfig{SealingKeys: []SealingKey{{ID: "k1", Secret: secret("seal.key")}}, HashKey: secret("hash.key")})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// wireLink is a link as New makes it, as far as its messages go.
func wireLink(t *testing.T, mti, partial string) *cardLink {
	t.Helper()
	var config LinkConfig
	config.SetDefaults()
	config.Reversal.MTI, config.Reversal.Partial = mti, partial
	config.Silence = new(reversal.Policy)
	config.Silence.SetDefaults()
	spec, err := config.Spec.Build()
	if err != nil {
		t.Fatal(err)
	}
	return &cardLink{name: "visa-a", config: config, spec: spec, zone: time.UTC}
}

// drawAuthorization is an authorisation as its row gives it back: whatever a request and its answer may have held.
func drawAuthorization(t *rapid.T, v *Vault) *Authorization {
	digits := func(label string, n int) string {
		return rapid.StringMatching(fmt.Sprintf("[0-9]{%d}", n)).Draw(t, label)
	}
	maybe := func(label, text string) string {
		if rapid.Bool().Draw(t, label) {
			return text
		}
		return ""
	}
	id := newID()
	pan := iso8583.CardNumber("4" + digits("pan", rapid.IntRange(11, 18).Draw(t, "pan length")))
	sealed, keyID := v.Seal(id, pan)
	a := &Authorization{ID: id, Tenant: "bank-a", Link: "visa-a", Type: Purchase, MTI: rapid.SampledFrom([]string{"0100", "0200"}).Draw(t, "mti"),
		STAN: stanOf(rapid.Int64Range(1, stanModulus).Draw(t, "stan")), RRN: digits("rrn", 12), AmountMinor: rapid.Int64Range(2, 999_999_999_999).Draw(t, "amount"),
		Currency: "EUR", ApprovalCode: maybe("approved", "A1B2C3"), PANSealed: sealed, PANKeyID: keyID,
		TransmissionDateTime: rapid.SampledFrom([]string{"1201120000", "0229235959", "0101000000"}).Draw(t, "de 7")}
	kept := map[string]string{"3": digits("de 3", 6), "11": a.STAN, "12": "120000", "13": "1201", "22": "051", "25": "00", "32": digits("de 32", rapid.IntRange(1, 11).Draw(t, "de 32 length")),
		"37": a.RRN, "41": rapid.StringMatching("[A-Z0-9 ]{8}").Draw(t, "de 41"), "42": rapid.StringMatching("[A-Z0-9 ]{15}").Draw(t, "de 42"), "49": "978"}
	for number, value := range map[string]string{"15": maybe("settled", "1202"), "18": maybe("mcc", digits("de 18", 4)), "33": maybe("forwarded", digits("de 33", 6)),
		"43": maybe("named", rapid.StringMatching("[ -~]{40}").Draw(t, "de 43"))} {
		if value != "" {
			kept[number] = value
		}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	a.Elements = string(text)
	return a
}

// TestS10_RebuiltReversalIsTheFirstOneByteForByte: whatever the authorisation was, each attempt that is built from its row is the message
// of the first but for the message type, and the type is the repeat's.
func TestS10_RebuiltReversalIsTheFirstOneByteForByte(t *testing.T) {
	t.Parallel()
	v := randomVault(t)
	links := map[string]*cardLink{"0420": wireLink(t, "0420", partialReplacement), "0400": wireLink(t, "0400", partialAmount)}
	rapid.Check(t, func(t *rapid.T) {
		a := drawAuthorization(t, v)
		mti := rapid.SampledFrom([]string{"0400", "0420"}).Draw(t, "reversal")
		l := links[mti]
		d := reversal.Duty{ID: reversal.WholeID(a.ID), AuthorizationID: a.ID, Kind: reversal.Reversal, Reason: reversal.Timeout, Attempt: 1,
			CreatedAt: time.Unix(rapid.Int64Range(0, 1<<32).Draw(t, "owed at"), 0)}
		approved := rapid.Int64Range(1, a.AmountMinor).Draw(t, "approved")
		if rapid.Bool().Draw(t, "partial") {
			a.ApprovedMinor, d.Number, d.AmountMinor = &approved, 1, rapid.Int64Range(1, approved).Draw(t, "taken back")
			d.StandingMinor, d.STAN = approved-d.AmountMinor, "123456"
		}
		_, first, err := l.buildDuty(v, a, d)
		if err != nil {
			t.Fatal(err)
		}
		stored := *a // as another life reads it
		d.Attempt = rapid.Int32Range(2, 1<<20).Draw(t, "attempt")
		d.Reopened = rapid.Int16Range(0, 1).Draw(t, "reopened")
		d.NextAt = time.Now()
		_, again, err := l.buildDuty(v, &stored, d)
		if err != nil {
			t.Fatal(err)
		}
		repeat, _ := iso8583.ParseMTI(mti)
		if string(first[:4]) != mti || string(again[:4]) != repeat.Repeat().String() || !bytes.Equal(first[4:], again[4:]) {
			t.Fatal("attempt " + strconv.Itoa(int(d.Attempt)) + " is not the first one but for its type")
		}
	})
}
