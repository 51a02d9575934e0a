package gateway

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/reversal"
)

// State is where a card authorisation stands. It moves by compare-and-set in SQL and in one direction only:
//
//	pending  -> approved | declined | not_sent | timed_out
//	approved -> captured | reversed | expired
//	timed_out -> reversed
type State string

// The states of an authorisation. TimedOut means that nobody knows what the scheme did, and that a reversal is owed.
const (
	Pending  State = "pending"
	Approved State = "approved"
	Declined State = "declined"
	NotSent  State = "not_sent"
	TimedOut State = "timed_out"
	Captured State = "captured"
	Reversed State = "reversed"
	Expired  State = "expired"
)

// Event is what moves an authorisation.
type Event string

// The events of the machine. EventAbandoned is silence past the deadline, a line lost after the write, an answer that
// cannot be used, or a restart with the authorisation open.
const (
	EventApproved             Event = "approved"
	EventDeclined             Event = "declined"
	EventWriteNotBegun        Event = "write_not_begun"
	EventAbandoned            Event = "abandoned"
	EventReversalAcknowledged Event = "reversal_acknowledged"
	EventCaptured             Event = "captured"
	EventHoldExpired          Event = "hold_expired"
)

// next is the machine as a pure function; the SQL of store_*.go moves a row only along it.
func next(state State, event Event) (State, error) {
	switch state {
	case Pending:
		switch event {
		case EventApproved:
			return Approved, nil
		case EventDeclined:
			return Declined, nil
		case EventWriteNotBegun:
			return NotSent, nil
		case EventAbandoned:
			return TimedOut, nil
		}
	case Approved:
		switch event {
		case EventReversalAcknowledged:
			return Reversed, nil
		case EventCaptured:
			return Captured, nil
		case EventHoldExpired:
			return Expired, nil
		}
	case TimedOut:
		if event == EventReversalAcknowledged {
			return Reversed, nil
		}
	}
	return state, fmt.Errorf("authorization %s cannot take %s", state, event)
}

// Outcome is what a state means for the caller's money.
type Outcome string

// Unknown is a real outcome: it has an owner and a next step.
const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Unknown   Outcome = "unknown"
)

// Outcome follows from the state and is stored nowhere.
func (s State) Outcome() Outcome {
	switch s {
	case Approved, Captured:
		return Succeeded
	case Declined, NotSent, Reversed, Expired:
		return Failed
	}
	return Unknown
}

// Authorization is the gateway's record of one card authorisation. Amounts are minor units of Currency.
type Authorization struct {
	ID                   uuid.UUID
	Tenant               string
	ClientReference      string
	OrderReference       string
	Link                 string
	Type                 AuthorizationType
	State                State
	StateVersion         int32
	Reason               string
	MTI                  string
	STAN                 string
	RRN                  string
	TransmissionDateTime string // DE 7, UTC MMDDhhmmss
	AmountMinor          int64
	ApprovedMinor        *int64
	CapturedMinor        int64  // completed by captures, or posted by a financial approval
	ReversedMinor        int64  // taken back by partial reversals
	ReturnedMinor        int64  // of CapturedMinor, what was undone
	Duties               int16  // how many numbers of captures and reversals are used
	Currency             string // ISO 4217 alphabetic
	ResponseCode         string // DE 39
	ApprovalCode         string // DE 38
	PANMasked            string
	PANSealed            []byte
	PANKeyID             string
	PANHash              []byte
	Elements             string    // what a reversal carries besides DE 2, as JSON by element number
	SettlementDate       time.Time // the link's business date when it was recorded; zero when the scheme named none
	AdditionalAmounts    string    // DE 54 of the answer: balances
	CustomerAccount      int32
	SettlementAccount    int32
	OwnerEpoch           int64
	CreatedAt            time.Time
	DeadlineAt           time.Time
	UpdatedAt            time.Time

	Reversal       *ReversalView // of the whole; nil when none is owed
	NumberedDuties []DutyView    // captures and their reversals, and partial ones, where the single read asks for them
}

// ReversalView is what a caller sees of the duty to undo the authorisation.
type ReversalView struct {
	ID             uuid.UUID  `json:"id"`
	State          string     `json:"state"`
	ClosedAs       string     `json:"closed_as,omitempty"` // of an acknowledged one: acknowledged, nothing_to_undo or withdrawn
	Attempts       int32      `json:"attempts"`
	NextAt         *time.Time `json:"next_at"`
	Reason         string     `json:"reason"`
	ResponseCode   string     `json:"response_code,omitempty"`
	NeedsAttention bool       `json:"needs_attention,omitempty"`

	reopened int16 // see reversal.Duty
}

// authorizationBody is the JSON of an authorisation, in answers and in reads alike.
type authorizationBody struct {
	ID                   uuid.UUID     `json:"id"`
	State                State         `json:"state"`
	Outcome              Outcome       `json:"outcome"`
	StateVersion         int32         `json:"state_version"`
	Reason               string        `json:"reason,omitempty"`
	Retry                Retry         `json:"retry,omitempty"`
	Sent                 Sent          `json:"sent"`
	ResponseCode         string        `json:"response_code,omitempty"`
	ApprovalCode         string        `json:"approval_code,omitempty"`
	STAN                 string        `json:"stan"`
	RRN                  string        `json:"rrn"`
	TransmissionDateTime string        `json:"transmission_date_time"`
	Link                 string        `json:"link"`
	Type                 string        `json:"type"`
	Amount               string        `json:"amount"`
	ApprovedAmount       string        `json:"approved_amount,omitempty"`
	CapturedAmount       string        `json:"captured_amount,omitempty"`
	ReversedAmount       string        `json:"reversed_amount,omitempty"`
	ReturnedAmount       string        `json:"returned_amount,omitempty"`
	RemainingAmount      string        `json:"remaining_amount,omitempty"`
	Currency             string        `json:"currency"`
	ClientReference      string        `json:"client_reference"`
	OrderReference       string        `json:"order_reference,omitempty"`
	PAN                  string        `json:"pan"`
	Balances             []Balance     `json:"balances,omitempty"`
	Reversal             *ReversalView `json:"reversal,omitempty"`
	Captures             []DutyView    `json:"captures,omitempty"`
	Reversals            []DutyView    `json:"reversals,omitempty"` // of a part, or of a capture
	CreatedAt            time.Time     `json:"created_at"`
	UpdatedAt            time.Time     `json:"updated_at"`
}

// JSON is the body of the authorisation for clients: masked, amounts as decimal text.
func (a *Authorization) JSON() []byte {
	body := authorizationBody{
		ID: a.ID, State: a.State, Outcome: a.State.Outcome(), StateVersion: a.StateVersion, Reason: a.Reason,
		Retry: a.retry(), Sent: a.sent(), ResponseCode: a.ResponseCode, ApprovalCode: a.ApprovalCode,
		STAN: a.STAN, RRN: a.RRN, TransmissionDateTime: a.TransmissionDateTime, Link: a.Link, Type: string(a.Type),
		Amount: a.text(a.AmountMinor), CapturedAmount: a.textAboveZero(a.CapturedMinor), ReversedAmount: a.textAboveZero(a.ReversedMinor),
		ReturnedAmount: a.textAboveZero(a.ReturnedMinor), RemainingAmount: a.textAboveZero(a.remaining()), Balances: parseBalances(a.AdditionalAmounts),
		Currency: a.Currency, ClientReference: a.ClientReference, OrderReference: a.OrderReference, PAN: a.PANMasked,
		Reversal: a.Reversal, CreatedAt: a.CreatedAt.UTC(), UpdatedAt: a.UpdatedAt.UTC(),
	}
	if a.ApprovedMinor != nil {
		body.ApprovedAmount = a.text(*a.ApprovedMinor)
	}
	for _, d := range a.NumberedDuties {
		if d.Kind == reversal.Capture {
			body.Captures = append(body.Captures, d)
		} else {
			body.Reversals = append(body.Reversals, d)
		}
	}
	text, err := json.Marshal(body)
	if err != nil { // plain fields only
		panic(fmt.Sprintf("marshal authorization: %v", err))
	}
	return text
}

// Path is where the authorisation is read.
func (a *Authorization) Path() string { return AuthorizationPath(a.ID) }

// AuthorizationPath is the API path of one authorisation.
func AuthorizationPath(id uuid.UUID) string { return "/v1/authorizations/" + id.String() }

// retry is the advice that goes with a decided state: a decline and a not_sent burn the key.
func (s State) retry() Retry {
	switch s {
	case Declined, NotSent, Reversed, Expired:
		return RetryNewKey
	case Pending:
		return RetrySameKey
	}
	return RetryNever
}

// retry is the state's advice, but for what timed out without a reversal, such as a balance inquiry: nothing of it is undone, and nothing
// of it moved, so it may be asked for anew.
func (a *Authorization) retry() Retry {
	if a.State == TimedOut && a.Reversal == nil {
		return RetryNewKey
	}
	return a.State.retry()
}

func (a *Authorization) sent() Sent {
	switch {
	case a.State == NotSent:
		return SentNo
	case a.State == Pending || a.State == TimedOut || a.State == Reversed:
		return SentUnknown // a reversal undoes what may never have arrived
	}
	return SentYes
}

// answerStatus is the HTTP status stored with the decision.
func (s State) answerStatus() int {
	switch s {
	case NotSent:
		return codeTable[CodeNotSent].status
	case Pending:
		return 202
	}
	return 201
}

// answer is the stored answer of a decided authorisation: status and body, replayed byte for byte.
func (a *Authorization) answer() (status int, body []byte) {
	if a.State == NotSent {
		problem := &Error{Code: CodeNotSent, Detail: a.Reason, Resource: a.Path()}
		return problem.Status(), problem.Problem()
	}
	return a.State.answerStatus(), a.JSON()
}
