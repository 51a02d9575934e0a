package gateway

import (
	"hash/maphash"
	"sync"
)

// maxRecentKeys bounds each of the two generations of keys remembered.
const maxRecentKeys = 1 << 16

// recentKeys remembers idempotency keys that came lately, so that a client that repeats itself is looked up before it uses a
// STAN and an RRN. It decides nothing: a forgotten key costs two numbers, a false match one read.
type recentKeys struct {
	seed maphash.Seed

	mu       sync.Mutex // protects the following
	current  map[uint64]struct{}
	previous map[uint64]struct{}
}

func newRecentKeys() *recentKeys {
	return &recentKeys{seed: maphash.MakeSeed(), current: map[uint64]struct{}{}}
}

// seen reports whether the key came before, and remembers it.
func (r *recentKeys) seen(tenant, key string) bool {
	var hash maphash.Hash
	hash.SetSeed(r.seed)
	hash.WriteString(tenant)
	hash.WriteByte(0)
	hash.WriteString(key)
	sum := hash.Sum64()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, current := r.current[sum]
	_, previous := r.previous[sum]
	if !current {
		if len(r.current) >= maxRecentKeys {
			r.previous, r.current = r.current, make(map[uint64]struct{}, maxRecentKeys)
		}
		r.current[sum] = struct{}{}
	}
	return current || previous
}
