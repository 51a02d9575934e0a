package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

const (
	// DefaultSealInterval is how often a Sealer looks for new postings.
	DefaultSealInterval = 2 * time.Second
	// maxPostingsPerSeal bounds one seal, its transaction and its memory.
	maxPostingsPerSeal = 4096
	// maxSealRaces bounds how often a sealer that lost to another starts over at once.
	maxSealRaces = 16
)

// seal is one link of the hash chain. It covers the postings after the previous seal's position up to its own.
type seal struct {
	Seq          int64
	ThroughTx    uint64
	ThroughID    int64
	Postings     int32
	PreviousHash []byte
	Hash         []byte
	SealedAt     time.Time
}

// covers says whether the posting's place is at or before the end of the seal.
func (s seal) covers(e Entry) bool {
	return e.Tx < s.ThroughTx || (e.Tx == s.ThroughTx && e.ID <= s.ThroughID)
}

var (
	errLostSealRace = errors.New("another sealer was first")
	// ErrSealAhead says that the chain ends at a transaction this server has not reached: the database was restored from a
	// dump into a cluster with a younger transaction counter, and postings made now would sort before sealed ones.
	ErrSealAhead = errors.New("the hash chain ends beyond this server's transaction counter")
)

// Sealer extends the hash chain over the postings and keeps the daily totals with it, outside the posting path. Any number of
// sealers may run; the primary key of the seal decides between them. All fields but Interval are required.
type Sealer struct {
	Pool     *pgxpool.Pool
	Interval time.Duration // DefaultSealInterval when 0
	Log      *zap.Logger
	Metrics  *Metrics
}

// Run seals every Interval until ctx ends, and then returns nil. A failed attempt is logged and made again at the next tick:
// nothing is lost by sealing late.
func (s *Sealer) Run(ctx context.Context) error {
	interval := s.Interval
	if interval == 0 {
		interval = DefaultSealInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := s.sealAll(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("ledger not sealed", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *Sealer) sealAll(ctx context.Context) error {
	for {
		n, err := s.SealOnce(ctx, time.Now())
		if err != nil || n < maxPostingsPerSeal {
			return err
		}
	}
}

// SealOnce writes at most one seal over the oldest postings that are below the snapshot horizon, and returns how many it
// covers: 0 when there is nothing to seal.
func (s *Sealer) SealOnce(ctx context.Context, now time.Time) (n int, err error) {
	for range maxSealRaces {
		n, err = sealNext(ctx, s.Pool, now)
		if !errors.Is(err, errLostSealRace) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	s.Metrics.sealedPostings.Add(float64(n))
	oldest, err := selectOldestUnsealed(ctx, s.Pool)
	if err != nil {
		return n, err
	}
	lag := time.Duration(0)
	if !oldest.IsZero() {
		lag = max(0, now.Sub(oldest))
	}
	s.Metrics.sealLagSeconds.Set(lag.Seconds())
	return n, nil
}

// sealEncoding names the byte encoding below; another encoding gets another name.
const sealEncoding = "schemegate ledger seal 1\n"

// sealHash computes the hash of one seal: the encoding's name, the previous hash, the seal's number and time, each posting
// with all its fields, and last the number of postings. Integers are big-endian at fixed width, text carries its length, so
// that no two contents have the same bytes.
type sealHash struct {
	sum      hash.Hash
	buffer   []byte
	postings int32
}

func newSealHash(previous []byte, seq int64, sealedAt time.Time) *sealHash {
	h := &sealHash{sum: sha256.New()}
	h.buffer = append(h.buffer, sealEncoding...)
	h.buffer = appendText(h.buffer, string(previous))
	h.buffer = binary.BigEndian.AppendUint64(h.buffer, uint64(seq))
	h.buffer = binary.BigEndian.AppendUint64(h.buffer, uint64(sealedAt.UnixMicro()))
	h.sum.Write(h.buffer)
	return h
}

func (h *sealHash) add(e Entry) {
	h.buffer = appendEntry(h.buffer[:0], e)
	h.sum.Write(h.buffer)
	h.postings++
}

func (h *sealHash) finish() []byte {
	h.sum.Write(binary.BigEndian.AppendUint32(h.buffer[:0], uint32(h.postings)))
	return h.sum.Sum(nil)
}

func appendEntry(b []byte, e Entry) []byte {
	b = binary.BigEndian.AppendUint64(b, e.Tx)
	b = binary.BigEndian.AppendUint64(b, uint64(e.ID))
	b = append(b, e.Intent[:]...)
	for _, v := range []int16{e.Transaction, int16(e.Step), e.Number, int16(e.Layer)} {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(e.DebitAccount))
	b = binary.BigEndian.AppendUint32(b, uint32(e.CreditAccount))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Money.Minor))
	b = binary.BigEndian.AppendUint64(b, uint64(e.ValueDate.Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(e.BookedAt.UnixMicro()))
	correction := byte(0)
	if e.Correction {
		correction = 1
	}
	b = append(b, correction)
	for _, text := range []string{e.Money.Currency.Alpha, e.SourceRef, e.Tenant, e.ClientReference} {
		b = appendText(b, text)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}
