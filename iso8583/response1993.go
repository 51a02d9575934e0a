package iso8583

import "fmt"

// authorizationActions1993 is the 1993 list of action codes. 911 (the issuer did not answer in time), 913 (a duplicate, of what?), 914
// and what speaks of advices or other classes is not in it and so means OutcomeUnknown.
var authorizationActions1993 = func() map[string]ResponseAction {
	actions := map[string]ResponseAction{
		"000": Approved,
		"001": Approved, // honour with identification
		"002": PartiallyApproved,
		"003": Approved, // VIP
		"004": Approved, // update track 3
		"005": Approved, // account type specified by the issuer
		"006": PartiallyApproved,
		"007": Approved, // update the chip
		"902": Declined, // invalid transaction
		"903": Declined, // re-enter transaction
		"904": Declined, // format error: nothing was decided, and the same bytes would only fail again
		"905": Declined, // acquirer not supported by switch
		"906": Declined, // cutover in progress
		"907": Declined, // issuer or switch inoperative; a profile may reverse on it
		"908": Declined, // no route
		"909": Declined, // system malfunction; a profile may reverse on it
		"910": Declined, // issuer signed off
		"912": Declined, // issuer unavailable
		"916": Declined, // message authentication code wrong: nothing was decided
		"923": StillWorking,
		"950": Declined, // violation of business arrangement
	}
	for code := 100; code < 300; code++ { // 1xx denied, 2xx denied and pick the card up, whatever the reason
		actions[fmt.Sprint(code)] = Declined
	}
	return actions
}()

// reversalActions1993 is the same for the answers to 1400 and 1420. 904 (format error) is not in it: the same bytes are never sent again.
var reversalActions1993 = map[string]ReversalAction{
	"000": ReversalAcknowledged,
	"400": ReversalAcknowledged, // accepted
	"906": RetryLater,           // cutover in progress
	"907": RetryLater,           // issuer or switch inoperative
	"908": RetryLater,           // no route
	"909": RetryLater,           // system malfunction
	"910": RetryLater,           // issuer signed off
	"911": RetryLater,           // issuer did not answer in time
	"912": RetryLater,           // issuer unavailable
	"913": NothingToUndo,        // duplicate: it was reversed before
	"914": NothingToUndo,        // original not found
	"915": RetryLater,           // cutover
	"923": RetryLater,           // request in progress
}
