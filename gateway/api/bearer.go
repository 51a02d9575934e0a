package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/schemegate/schemegate/gateway"
)

const (
	// keyPrefix lets a key be recognised where it should not be.
	keyPrefix = "sgk_"
	// keyBytes of randomness make guessing hopeless, so a plain hash is enough to store.
	keyBytes = 32
	// maxBearerBytes bounds what is hashed on behalf of nobody.
	maxBearerBytes = 512
)

// NewKey makes a bearer key and its entry for the configuration. The key is shown once and kept nowhere.
func NewKey(tenant, name string) (key string, entry Key, err error) {
	if !keyWord.MatchString(tenant) || !keyWord.MatchString(name) {
		return "", Key{}, fmt.Errorf("make key: tenant and name have 1 to 64 lower-case letters, digits, - or _")
	}
	random := make([]byte, keyBytes)
	rand.Read(random)
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(random)
	hash := sha256.Sum256([]byte(key))
	return key, Key{Tenant: tenant, Name: name, SHA256: hex.EncodeToString(hash[:])}, nil
}

// caller is who a request comes from, as its key says.
type caller struct {
	tenant   string
	keyName  string
	operator bool
}

// keyring knows the callers by the hashes of their keys.
type keyring []struct {
	hash   [sha256.Size]byte
	caller caller
}

func newKeyring(keys []Key) (keyring, error) {
	ring := make(keyring, len(keys))
	for i, key := range keys {
		hash, err := hex.DecodeString(key.SHA256)
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("read key %d: its hash is not a SHA-256", i)
		}
		copy(ring[i].hash[:], hash)
		ring[i].caller = caller{tenant: key.Tenant, keyName: key.Name, operator: key.Operator}
	}
	return ring, nil
}

// authenticate finds the caller of a request. Every key is compared, in constant time each, so that the time taken says
// nothing about how near a guess was.
func (ring keyring) authenticate(header http.Header) (caller, error) {
	refused := &gateway.Error{Code: gateway.CodeUnauthenticated}
	values := header.Values("Authorization")
	if len(values) != 1 {
		return caller{}, refused
	}
	scheme, key, found := strings.Cut(values[0], " ")
	key = strings.Trim(key, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || key == "" || len(key) > maxBearerBytes {
		return caller{}, refused
	}
	hash := sha256.Sum256([]byte(key))
	match := -1
	for i := range ring {
		match = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], ring[i].hash[:]), i, match)
	}
	if match < 0 {
		return caller{}, refused
	}
	return ring[match].caller, nil
}
