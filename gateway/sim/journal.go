package sim

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// Directions of a Record.
const (
	In    = "in"    // a message from the peer
	Out   = "out"   // a message to the peer; noted before it is written, so that whoever has it can find it here
	Event = "event" // something about a connection
)

// Record is one line of the scheme's journal. It holds nothing of a card but the masked number.
type Record struct {
	At                   time.Time `json:"at"`
	Direction            string    `json:"direction"`
	Connection           int       `json:"connection"`     // from 1, in the order they came
	Peer                 string    `json:"peer,omitempty"` // address, of messages
	MTI                  string    `json:"mti,omitempty"`
	Card                 string    `json:"card,omitempty"`         // DE 2, masked
	AmountMinor          int64     `json:"amount_minor,omitempty"` // DE 4
	STAN                 string    `json:"stan,omitempty"`
	RRN                  string    `json:"rrn,omitempty"`
	TransmissionDateTime string    `json:"transmission_date_time,omitempty"`
	TerminalID           string    `json:"terminal_id,omitempty"`
	ResponseCode         string    `json:"response_code,omitempty"`
	NetworkCode          string    `json:"network_code,omitempty"`           // DE 70
	OriginalDataElements string    `json:"original_data_elements,omitempty"` // DE 90, in 1993 DE 56
	ProcessingCode       string    `json:"processing_code,omitempty"`        // DE 3
	Currency             string    `json:"currency,omitempty"`               // DE 49
	ApprovalCode         string    `json:"approval_code,omitempty"`          // DE 38
	ReplacementAmounts   string    `json:"replacement_amounts,omitempty"`    // DE 95 of a reversal in 1987
	FunctionCode         string    `json:"function_code,omitempty"`          // DE 24 in 1993
	BusinessDate         string    `json:"business_date,omitempty"`          // of network management: DE 15, in 1993 DE 28
	Digest               string    `json:"digest,omitempty"`                 // of the body, keyed anew in each run: equal for equal bytes within one run only
	Rule                 string    `json:"rule,omitempty"`                   // the rule that decided; empty for the default
	Note                 string    `json:"note,omitempty"`                   // what was done, or what happened
	Violation            string    `json:"violation,omitempty"`              // what the peer did that it must not
	Key                  HoldKey   `json:"-"`                                // the message's name, that of the request in its repeats and its answer
	Original             HoldKey   `json:"-"`                                // what it names
}

// Counts are how often things happened since the start.
type Counts struct {
	In, Out    map[iso8583.MTI]int // messages by type
	Violations int
	Malformed  int // frames that are no message
	KeepAlives int // frames of length zero
	Dropped    int // journal records that made room in memory
	FileFull   int // journal records not written to the file because of its bound
	Forgotten  int // originals that made room in the books
}

// journal keeps records in memory, and in a file when it has one. It is safe for concurrent use.
type journal struct {
	digestKey []byte
	max       int
	maxFile   int

	mu      sync.Mutex // protects the following
	file    *os.File   // nil without one
	written int        // to the file
	records []Record   // a ring once it is full
	oldest  int        // index in records
	counts  Counts
	failed  error // of the file, the first
}

func newJournal(digestKey []byte, cfg CardConfig) (*journal, error) {
	j := &journal{digestKey: digestKey, max: cfg.MaxJournal, maxFile: cfg.MaxJournalFile,
		counts: Counts{In: map[iso8583.MTI]int{}, Out: map[iso8583.MTI]int{}}}
	if cfg.JournalFile == "" {
		return j, nil
	}
	file, err := os.OpenFile(cfg.JournalFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j.file = file
	return j, nil
}

// message notes a message; body is what it was decoded from or encoded to.
func (j *journal) message(direction string, conn *connection, m *iso8583.Message, body []byte, rule string, v verdict) {
	w, class := conn.card.wire, m.MTI().Class()
	r := Record{Direction: direction, Connection: conn.number, Peer: conn.peer, MTI: m.MTI().String(), AmountMinor: max(0, amountOf(m)),
		STAN: m.Get(iso8583.STAN), RRN: m.Get(iso8583.RRN), TransmissionDateTime: m.Get(iso8583.TransmissionDateTime),
		TerminalID: m.Get(iso8583.TerminalID), ResponseCode: m.Get(iso8583.ResponseCode), NetworkCode: w.networkCode(m),
		OriginalDataElements: m.Get(w.spec.OriginalElement()), ProcessingCode: m.Get(iso8583.ProcessingCode),
		Currency: m.Get(iso8583.CurrencyTransaction), ApprovalCode: m.Get(iso8583.ApprovalCode),
		Digest: j.digest(body), Rule: rule, Note: v.note, Violation: v.violation, Key: w.key(m)}
	if w.namesOriginal(m) {
		r.Original, _ = w.originalKey(m) // one that is malformed names nothing
	}
	switch {
	case class == networkClass:
		r.BusinessDate = m.Get(w.network.BusinessDateElement)
	case w.is1993:
		r.FunctionCode = m.Get(iso8583.FunctionCode)
	case class == 4:
		r.ReplacementAmounts = m.Get(iso8583.ReplacementAmounts)
	}
	if m.Has(iso8583.PAN) {
		r.Card = iso8583.MaskPAN(m.Get(iso8583.PAN))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if direction == In {
		j.counts.In[m.MTI()]++
	} else {
		j.counts.Out[m.MTI()]++
	}
	j.add(r)
}

// event notes what is not a message.
func (j *journal) event(connection int, note, violation string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.add(Record{Direction: Event, Connection: connection, Note: note, Violation: violation})
}

// count changes the counts under the lock.
func (j *journal) count(change func(*Counts)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.counts)
}

// add keeps a record and writes its line at once. The caller holds mu.
func (j *journal) add(r Record) {
	r.At = time.Now().UTC()
	if r.Violation != "" {
		j.counts.Violations++
	}
	if len(j.records) < j.max {
		j.records = append(j.records, r)
	} else {
		j.records[j.oldest] = r
		j.oldest = (j.oldest + 1) % j.max
		j.counts.Dropped++
	}
	switch {
	case j.file == nil || j.failed != nil:
	case j.written >= j.maxFile:
		j.counts.FileFull++
	default:
		j.written++
		j.failed = j.writeLine(r)
	}
}

func (j *journal) writeLine(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = j.file.Write(append(line, '\n'))
	return err
}

// snapshot gives the records in memory, the oldest first.
func (j *journal) snapshot() []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(append(make([]Record, 0, len(j.records)), j.records[j.oldest:]...), j.records[:j.oldest]...)
}

func (j *journal) countsCopy() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := j.counts
	counts.In, counts.Out = maps.Clone(counts.In), maps.Clone(counts.Out)
	return counts
}

// close closes the file and gives the first error there was with it.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	if j.failed != nil {
		err = j.failed
	}
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// digest is keyed so that nobody can find a card number by trying.
func (j *journal) digest(body []byte) string {
	mac := hmac.New(sha256.New, j.digestKey)
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// amountOf is DE 4 in minor units, -1 when it is absent. The codec lets only digits through.
func amountOf(m *iso8583.Message) int64 {
	amount, err := strconv.ParseInt(m.Get(iso8583.AmountTransaction), 10, 64)
	if err != nil {
		return -1
	}
	return amount
}
