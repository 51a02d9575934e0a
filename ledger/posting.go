package ledger

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Layer is the book a posting stands in.
type Layer int16

// The layers: pending is money held, posted is money moved.
const (
	Pending Layer = 1
	Posted  Layer = 2
)

// String is "pending" or "posted".
func (l Layer) String() string {
	switch l {
	case Pending:
		return "pending"
	case Posted:
		return "posted"
	}
	return "layer " + strconv.Itoa(int(l))
}

// Step is what a posting does for its intent. The numbers are stored; they never change.
type Step int16

// The steps. Return moves money back as new business (a refund, a pacs.004); Compensate mirrors a posting that should not
// stand and is the only step of a correction.
const (
	Hold       Step = 1
	Release    Step = 2
	Debit      Step = 3
	Credit     Step = 4
	Return     Step = 5
	Compensate Step = 6
)

var stepNames = [...]string{Hold: "hold", Release: "release", Debit: "debit", Credit: "credit", Return: "return", Compensate: "compensate"}

// String is the step's word in a key: "hold", "release", "debit", "credit", "return", "compensate".
func (s Step) String() string {
	if s < Hold || s > Compensate {
		return "step " + strconv.Itoa(int(s))
	}
	return stepNames[s]
}

// Limits of what a posting stores.
const (
	maxTenantBytes          = 64
	maxClientReferenceBytes = 256
	maxSourceRefBytes       = 256
	maxLinkBytes            = 64
)

// StepKey names one step of an intent: intent, transaction (0 for cards), step, and its number from 1.
type StepKey struct {
	Intent      uuid.UUID
	Transaction int16
	Step        Step
	Number      int16
}

// String is "<intent>:<transaction>:<step>:<n>".
func (k StepKey) String() string {
	return fmt.Sprintf("%s:%d:%s:%d", k.Intent, k.Transaction, k.Step, k.Number)
}

// ParseStepKey reads what StepKey.String writes, and nothing else.
func ParseStepKey(text string) (StepKey, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return StepKey{}, errors.New("parse step key: not of the form <intent>:<transaction>:<step>:<n>")
	}
	intent, err := uuid.Parse(parts[0])
	if err != nil {
		return StepKey{}, errors.New("parse step key: intent is not a UUID")
	}
	transaction, err := strconv.ParseInt(parts[1], 10, 16)
	if err != nil {
		return StepKey{}, errors.New("parse step key: transaction is not a number")
	}
	number, err := strconv.ParseInt(parts[3], 10, 16)
	if err != nil {
		return StepKey{}, errors.New("parse step key: step number is not a number")
	}
	for step := Hold; step <= Compensate; step++ {
		key := StepKey{Intent: intent, Transaction: int16(transaction), Step: step, Number: int16(number)}
		if parts[2] == step.String() && key.String() == text {
			return key, nil
		}
	}
	return StepKey{}, errors.New("parse step key: unknown step or not in its usual form")
}

// Posting moves Money from DebitAccount to CreditAccount in one layer. ValueDate counts by its date alone.
type Posting struct {
	Intent          uuid.UUID
	Transaction     int16 // position in a message of many transactions; 0 for cards
	Step            Step
	Number          int16 // from 1, for steps that happen more than once
	Layer           Layer
	DebitAccount    int32
	CreditAccount   int32
	Money           Money
	ValueDate       time.Time
	SourceRef       string // what caused it: a message, a file, an operator's decision
	Correction      bool   // undoes a posting that should not stand; a refund is not a correction
	Tenant          string
	ClientReference string
}

// StepKey is the posting's key.
func (p Posting) StepKey() StepKey {
	return StepKey{Intent: p.Intent, Transaction: p.Transaction, Step: p.Step, Number: p.Number}
}

// Key is the posting's key as text: "<intent>:<transaction>:<step>:<n>".
func (p Posting) Key() string { return p.StepKey().String() }

// Validate reports the first rule the posting breaks. The database holds the same rules as constraints; here they cost no
// batch.
func (p Posting) Validate() error {
	switch {
	case p.Intent == uuid.Nil:
		return errors.New("posting has no intent")
	case p.Transaction < 0:
		return errors.New("posting's transaction is negative")
	case p.Step < Hold || p.Step > Compensate:
		return errors.New("posting's step is unknown")
	case p.Number < 1:
		return errors.New("posting's number is not positive")
	case p.Layer != Pending && p.Layer != Posted:
		return errors.New("posting's layer is unknown")
	case p.DebitAccount == 0 || p.CreditAccount == 0:
		return errors.New("posting lacks an account")
	case p.DebitAccount == p.CreditAccount:
		return errors.New("posting's accounts are the same")
	case p.Money.Minor <= 0:
		return errors.New("posting's amount is not positive")
	case p.Money.Currency == Currency{}:
		return errors.New("posting has no currency")
	case p.ValueDate.IsZero():
		return errors.New("posting has no value date")
	case p.Correction != (p.Step == Compensate):
		return errors.New("posting's correction mark and its step disagree")
	case !withinBytes(p.Tenant, maxTenantBytes):
		return fmt.Errorf("posting's tenant is empty or longer than %d bytes", maxTenantBytes)
	case !withinBytes(p.ClientReference, maxClientReferenceBytes):
		return fmt.Errorf("posting's client reference is empty or longer than %d bytes", maxClientReferenceBytes)
	case !withinBytes(p.SourceRef, maxSourceRefBytes):
		return fmt.Errorf("posting's source reference is empty or longer than %d bytes", maxSourceRefBytes)
	}
	return nil
}

func withinBytes(text string, limit int) bool { return text != "" && len(text) <= limit }

// compensateStride leaves room for the step in the last digit of a compensating posting's number.
const compensateStride = 10

// CompensationOf is the key of the posting that mirrors the given one. The number is derived, so that the same posting is
// mirrored once however often this is asked: debit 2 is mirrored by compensate 23, the last digit being the step. A
// correction is itself corrected by posting anew, not by mirroring the mirror.
func CompensationOf(original StepKey) (StepKey, error) {
	switch {
	case original.Step < Hold || original.Step >= Compensate:
		return StepKey{}, fmt.Errorf("derive compensation key: a %s posting is not mirrored", original.Step)
	case original.Number < 1 || original.Number > (math.MaxInt16-int16(Compensate))/compensateStride:
		return StepKey{}, errors.New("derive compensation key: step number is out of range")
	}
	return StepKey{
		Intent: original.Intent, Transaction: original.Transaction, Step: Compensate,
		Number: original.Number*compensateStride + int16(original.Step),
	}, nil
}
