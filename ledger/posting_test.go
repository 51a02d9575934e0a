package ledger

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestStepKeyText(t *testing.T) {
	t.Parallel()
	intent := uuid.MustParse("0190b5a8-0000-7000-8000-000000000001")
	p := Posting{Intent: intent, Transaction: 0, Step: Hold, Number: 1}
	if got, want := p.Key(), "0190b5a8-0000-7000-8000-000000000001:0:hold:1"; got != want {
		t.Errorf("Key() = %q, want %q", got, want)
	}
	names := map[Step]string{Hold: "hold", Release: "release", Debit: "debit", Credit: "credit", Return: "return", Compensate: "compensate"}
	for step, name := range names {
		if step.String() != name {
			t.Errorf("step %d is %q, want %q", step, step, name)
		}
	}
}

func TestStepKeyRoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := StepKey{
			Intent:      uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "intent")),
			Transaction: rapid.Int16().Draw(t, "transaction"),
			Step:        Step(rapid.Int16Range(int16(Hold), int16(Compensate)).Draw(t, "step")),
			Number:      rapid.Int16().Draw(t, "number"),
		}
		back, err := ParseStepKey(key.String())
		if err != nil || back != key {
			t.Fatalf("%s is read as %s: %v", key, back, err)
		}
	})
}

func TestParseStepKeyRefuses(t *testing.T) {
	t.Parallel()
	const intent = "0190b5a8-0000-7000-8000-000000000001"
	for _, text := range []string{
		"", intent, intent + ":0:hold", intent + ":0:hold:1:2", intent + ":0:steal:1", intent + ":0:HOLD:1", intent + ":x:hold:1",
		intent + ":0:hold:", intent + ":0:hold:01", intent + ":+0:hold:1", intent + ":0:hold:40000",
		strings.ToUpper(intent) + ":0:hold:1", "{" + intent + "}:0:hold:1",
	} {
		if key, err := ParseStepKey(text); err == nil {
			t.Errorf("ParseStepKey(%q) = %s, want an error", text, key)
		}
	}
}

func TestCompensationKeys(t *testing.T) {
	t.Parallel()
	original := StepKey{Intent: uuid.New(), Transaction: 3, Step: Debit, Number: 2}
	mirror, err := CompensationOf(original)
	want := StepKey{Intent: original.Intent, Transaction: 3, Step: Compensate, Number: 23}
	if err != nil || mirror != want {
		t.Errorf("CompensationOf(%s) = %s, %v; want %s", original, mirror, err, want)
	}
	seen := map[StepKey]StepKey{}
	for step := Hold; step < Compensate; step++ {
		for number := int16(1); number <= 3000; number++ {
			original := StepKey{Intent: original.Intent, Step: step, Number: number}
			mirror, err := CompensationOf(original)
			if err != nil {
				t.Fatal(err)
			}
			if other, taken := seen[mirror]; taken {
				t.Fatalf("%s and %s are both mirrored by %s", original, other, mirror)
			}
			seen[mirror] = original
		}
	}
	for _, key := range []StepKey{{Step: Compensate, Number: 1}, {Step: Hold, Number: 0}, {Step: Hold, Number: 3277}, {Step: 0, Number: 1}} {
		if mirror, err := CompensationOf(key); err == nil {
			t.Errorf("CompensationOf(%s) = %s, want an error", key, mirror)
		}
	}
}

func TestPostingValidate(t *testing.T) {
	t.Parallel()
	valid := Posting{
		Intent: uuid.New(), Step: Hold, Number: 1, Layer: Pending, DebitAccount: 1, CreditAccount: 2,
		Money: Money{Minor: 1, Currency: currency(t, "EUR")}, ValueDate: time.Now(), SourceRef: "test", Tenant: "acme",
		ClientReference: "ref-1",
	}
	if err := valid.Validate(); err != nil {
		t.Fatalf("a valid posting is refused: %v", err)
	}
	tests := map[string]func(p *Posting){
		"no intent":               func(p *Posting) { p.Intent = uuid.Nil },
		"transaction is negative": func(p *Posting) { p.Transaction = -1 },
		"step is unknown":         func(p *Posting) { p.Step = 7 },
		"number is not positive":  func(p *Posting) { p.Number = 0 },
		"layer is unknown":        func(p *Posting) { p.Layer = 3 },
		"lacks an account":        func(p *Posting) { p.CreditAccount = 0 },
		"accounts are the same":   func(p *Posting) { p.CreditAccount = 1 },
		"amount is not positive":  func(p *Posting) { p.Money.Minor = 0 },
		"no currency":             func(p *Posting) { p.Money.Currency = Currency{} },
		"no value date":           func(p *Posting) { p.ValueDate = time.Time{} },
		"correction mark":         func(p *Posting) { p.Correction = true },
		"tenant is empty":         func(p *Posting) { p.Tenant = "" },
		"client reference":        func(p *Posting) { p.ClientReference = strings.Repeat("x", maxClientReferenceBytes+1) },
		"source reference":        func(p *Posting) { p.SourceRef = "" },
	}
	for rule, spoil := range tests {
		p := valid
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("want an error about %q, got %v", rule, err)
		}
	}
}
