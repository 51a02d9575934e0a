package api

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/schemegate/schemegate/gateway"
)

var (
	captureErrors = []gateway.Code{gateway.CodeDuplicateReference, gateway.CodeAuthorizationPending, gateway.CodeAuthorizationTimedOut,
		gateway.CodeAuthorizationDeclined, gateway.CodeAuthorizationNotSent, gateway.CodeAuthorizationCaptured, gateway.CodeAuthorizationReversed,
		gateway.CodeAuthorizationExpired, gateway.CodeNothingHeld, gateway.CodeReversalOwed, gateway.CodeAmountExceedsRemaining, gateway.CodeTooManyDuties,
		gateway.CodeUnknownLink, gateway.CodeInternal, gateway.CodeInternalAfterRecorded}
	reversalErrors = []gateway.Code{gateway.CodeAuthorizationPending, gateway.CodeAuthorizationTimedOut, gateway.CodeAuthorizationDeclined,
		gateway.CodeAuthorizationNotSent, gateway.CodeAuthorizationReversed,
		gateway.CodeAuthorizationCaptured, gateway.CodeAuthorizationExpired, gateway.CodeNothingHeld, gateway.CodeReversalOwed, gateway.CodeCaptured, gateway.CodeNothingToUndo,
		gateway.CodeAmountExceedsRemaining, gateway.CodePartialReversalRefused, gateway.CodeTooManyDuties,
		gateway.CodeUnknownLink, gateway.CodeInternal, gateway.CodeInternalAfterRecorded}
)

func captureRequestSchema() *huma.Schema {
	s := describe(objectSchema(map[string]*huma.Schema{
		"client_reference": textSchema(referenceForm.String()), "amount": textSchema(`^[0-9]{1,12}(\.[0-9]+)?$`), "final": flag(),
	}, "client_reference"), `
		client_reference: The client's own name for this capture, unique for ever.
		amount: Decimal text in the authorisation's currency; all that remains when absent.
		final: No other capture follows, so the rest of the hold is released. When absent, whether nothing remains.`)
	s.AdditionalProperties = false
	return s
}

func reversalRequestSchema() *huma.Schema {
	s := describe(objectSchema(map[string]*huma.Schema{
		"client_reference": textSchema(referenceForm.String()), "amount": textSchema(`^[0-9]{1,12}(\.[0-9]+)?$`), "capture_id": id(),
		"reason": word("customer_cancellation", "answer_undelivered"),
	}), `
		client_reference: Of the authorisation; required where the path does not name it, refused where it does.
		amount: Takes back this much of the hold; the whole authorisation when absent.
		capture_id: Undoes this capture instead.
		reason: customer_cancellation when absent.`)
	s.AdditionalProperties = false
	return s
}

func dutySchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": id(), "authorization_id": id(), "kind": word(kindReversal, kindCapture), "number": integerSchema(0, 0),
		"client_reference": text(), "amount": text(), "standing_amount": text(), "currency": text(), "final": flag(), "undoes": id(), "reason": text(),
		"stan": text(), "state": word("owed", "acknowledged", "suspended"), "closed_as": closedAs(), "attempts": integerSchema(0, 0),
		"next_at": orNull(moment()), "response_code": text(), "needs_attention": flag(), "created_at": moment(), "updated_at": moment(),
	}, "id", "kind", "reason", "state", "attempts", "next_at", "created_at"), `
		authorization_id: Absent in the answer to a reversal of something that is not known: it will be refused when it comes.
		number: Among the authorisation's captures and reversals; 0 is the reversal of the whole.
		amount: Captured or taken back; absent for the reversal of the whole.
		standing_amount: What a partial reversal leaves of the approved amount.
		undoes: The capture that this reversal undoes.
		stan: Where it is not the original's, from the first attempt on.
		state: owed is being delivered; suspended waits for a person.
		next_at: When the next attempt is due; null when none is.`)
}

// dutyAnswerSchema is what the POST is told: the capture or reversal, and its authorisation as it then stood.
func dutyAnswerSchema() *huma.Schema {
	s := dutySchema()
	s.Properties["authorization"] = refSchema("AuthorizationSummary")
	return s
}

func summarySchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"state": {Type: huma.TypeString, Enum: anyOf(states)}, "state_version": integerSchema(1, 0),
		"captured_amount": text(), "reversed_amount": text(), "remaining_amount": text(),
	}, "state", "state_version", "captured_amount", "reversed_amount", "remaining_amount"), `
		remaining_amount: Of the approved hold, what can still be captured or taken back.`)
}

func closedAs() *huma.Schema { return word("acknowledged", "nothing_to_undo", "withdrawn") }

func linkRequestSchema() *huma.Schema {
	s := describe(objectSchema(map[string]*huma.Schema{"reason": text()}, "reason"), `
		reason: Why, one line; it is never erased.`)
	s.AdditionalProperties = false
	return s
}

func linkControlSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"name": text(), "held": flag(), "planned_sign_off": flag(), "reason": text(), "version": integerSchema(0, 0),
	}, "name", "held", "planned_sign_off", "reason", "version"), `
		held: No new requests are taken.
		planned_sign_off: Signed off until a person signs it on again.
		version: Grows by one with each decision.`)
}

func duplicateSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"id": id(), "at": moment(), "source": word("client", "scheme"), "reason": text(), "key": text(), "original_id": orNull(id()),
	}, "id", "at", "source", "reason", "key", "original_id"), `
		reason: What the repeat got, such as replayed, in_progress, key_reuse or duplicate_reference.
		key: Endpoint and idempotency key, or link, message type and STAN.
		original_id: What it repeats.`)
}

func timelineSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"found_by": text(), "authorization": refSchema("Authorization"), "steps": {Type: huma.TypeArray, Items: refSchema("TimelineStep")}, "next": refSchema("NextStep"),
	}, "found_by", "steps", "next"), `
		authorization: As it is now; absent where a reversal came before it.
		found_by: Which reference it was: id, duty_id, client_reference, capture_reference, rrn or stan.`)
}

func timelineStepSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"at": moment(), "what": word("state", "sent", "received", "told", "posted", "event", "exception", "duplicate"), "subject": text(), "text": text(),
		"mti": text(), "stan": text(), "response_code": text(), "attempt": integerSchema(0, 0), "image": text(), "key": text(), "amount": text(),
		"layer": text(), "debit": text(), "credit": text(), "correction": flag(),
	}, "at", "what", "subject", "text"), `
		subject: The authorisation, its reversal, or a capture or reversal with its number.
		text: One line for people.
		image: Of a message, masked.
		key: Of a posting.`)
}

func nextStepSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{"text": text(), "at": moment(), "owner": word("schemegate", "client", "operator", "nobody")}, "text", "owner"), `
		owner: Who has to do it.`)
}

func cardBalanceSchema() *huma.Schema {
	return describe(objectSchema(map[string]*huma.Schema{
		"account_type": text(), "amount_type": text(), "currency": text(), "sign": word("C", "D"), "amount": text(),
	}, "account_type", "amount_type", "currency", "sign", "amount"), `
		account_type: Two digits, such as 20 for a checking account.
		amount_type: Two digits, such as 01 for the ledger balance and 02 for the available one.
		sign: C or D.`)
}
