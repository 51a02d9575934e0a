package gateway

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/iso8583"
)

// Duplicate is a repeat that was recognised and cut off: one row of the dedup journal. It decides nothing.
type Duplicate struct {
	ID         uuid.UUID  `json:"id"`
	At         time.Time  `json:"at"`
	Source     string     `json:"source"` // client or scheme
	Reason     string     `json:"reason"` // replayed, in_progress, key_reuse, duplicate_reference, reversed_before or answer_repeated
	Key        string     `json:"key"`    // endpoint and idempotency key, or link, message type and STAN
	OriginalID *uuid.UUID `json:"original_id"`

	tenant string
}

// The sources of a duplicate.
const (
	fromClient = "client"
	fromScheme = "scheme"
)

const (
	// maxDuplicates bounds the rows waiting to be written down; past it a repeat is counted, not kept.
	maxDuplicates = 4096
	// duplicateWriters is how many are written down at once; the committer puts them together.
	duplicateWriters = 16
)

// reasonAnswerRepeated is a second copy of the answer that decided.
const reasonAnswerRepeated = "answer_repeated"

// repeated counts a client's repeat and puts it into the journal. It never holds up the answer.
func (g *Gateway) repeated(reason, tenant, endpoint, key string, original uuid.UUID) {
	g.metrics.repeats.WithLabelValues(reason).Inc()
	g.noteDuplicate(Duplicate{Source: fromClient, Reason: reason, Key: endpoint + "/" + key, OriginalID: &original, tenant: tenant})
}

// answerRepeated puts a second copy of an answer that was taken before into the journal.
func (g *Gateway) answerRepeated(l *cardLink, m *iso8583.Message, a *Authorization) {
	g.noteDuplicate(Duplicate{Source: fromScheme, Reason: reasonAnswerRepeated, Key: l.name + "/" + m.MTI().String() + "/" + m.Get(iso8583.STAN),
		OriginalID: &a.ID, tenant: a.Tenant})
}

func (g *Gateway) noteDuplicate(d Duplicate) {
	d.ID, d.At = newID(), g.now()
	select {
	case g.duplicates <- d:
	default:
		g.metrics.duplicatesDropped.Inc()
	}
}

// keepDuplicates writes duplicates down until ctx ends, and then what is waiting.
func (g *Gateway) keepDuplicates(ctx context.Context) error {
	for {
		select {
		case d := <-g.duplicates:
			g.keepDuplicate(d)
			continue
		default:
		}
		select {
		case d := <-g.duplicates:
			g.keepDuplicate(d)
		case <-ctx.Done():
			return nil
		}
	}
}

func (g *Gateway) keepDuplicate(d Duplicate) {
	ctx, cancel := context.WithTimeout(context.Background(), unmatchedTimeout)
	defer cancel()
	if err := g.committer.Do(ctx, &duplicateStep{duplicate: d}); err != nil {
		g.metrics.duplicatesDropped.Inc()
		g.log.Warn("duplicate not kept in the journal", zap.String("reason", d.Reason), zap.Error(err))
	}
}

// Duplicates lists the tenant's dedup journal, newest first: those before the given one, or from the newest when it is the nil UUID.
func (g *Gateway) Duplicates(ctx context.Context, tenant string, before uuid.UUID, limit int) ([]Duplicate, error) {
	list, err := selectDuplicates(ctx, g.db, tenant, before, limit)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return list, nil
}

// duplicateStep is one row of the dedup journal on its way through the committer.
type duplicateStep struct{ duplicate Duplicate }

func (*duplicateStep) Kind() *commit.Kind { return duplicateKind }

func lessDuplicate(a, b commit.Step) bool {
	return lessID(a.(*duplicateStep).duplicate.ID, b.(*duplicateStep).duplicate.ID)
}
