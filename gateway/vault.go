package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// vaultKeyBytes is the size of every key in the vault: 256 bits.
const vaultKeyBytes = 32

// maxVaultKeys bounds the sealing keys that a configuration may name.
const maxVaultKeys = 16

// VaultConfig names the keys that protect card numbers at rest. The first sealing key seals; the others only open.
type VaultConfig struct {
	SealingKeys []SealingKey   `yaml:"sealing_keys"`
	HashKey     configs.Secret `yaml:"hash_key"`
}

// SealingKey is one AES-256 key, base64 in a file or an environment variable. Its id stands in each row it sealed.
type SealingKey struct {
	ID     string         `yaml:"id"`
	Secret configs.Secret `yaml:"key"`
}

// Validate names every fault of the vault's configuration; it does not read the keys.
func (c VaultConfig) Validate(path string, f *configs.Faults) {
	if len(c.SealingKeys) == 0 || len(c.SealingKeys) > maxVaultKeys {
		f.Add(path+".sealing_keys", fmt.Sprintf("needs 1 to %d keys", maxVaultKeys), len(c.SealingKeys))
	}
	seen := map[string]bool{}
	for i, key := range c.SealingKeys {
		at := fmt.Sprintf("%s.sealing_keys.%d", path, i)
		if !nameForm.MatchString(key.ID) {
			f.Add(at+".id", "1 to 32 lower-case letters, digits or -", key.ID)
		}
		if seen[key.ID] {
			f.Add(at+".id", "each key needs an id of its own", key.ID)
		}
		seen[key.ID] = true
		key.Secret.Validate(at+".key", f)
	}
	c.HashKey.Validate(path+".hash_key", f)
}

// CheckKeys reads every key and names those that the vault could not open with.
func (c VaultConfig) CheckKeys(path string, f *configs.Faults) {
	check := func(at string, s configs.Secret) {
		if _, err := readKey(s); err != nil {
			f.Add(at, err.Error(), nil)
		}
	}
	for i, key := range c.SealingKeys {
		check(fmt.Sprintf("%s.sealing_keys.%d.key", path, i), key.Secret)
	}
	check(path+".hash_key", c.HashKey)
}

// Vault seals card numbers for storage and makes the keyed hashes that find them again. Safe for concurrent use.
type Vault struct {
	current   string
	sealing   map[string]cipher.AEAD
	panHash   []byte
	digestKey []byte
}

// OpenVault reads the keys. It never logs or returns their content.
func OpenVault(c VaultConfig) (*Vault, error) {
	v := &Vault{sealing: make(map[string]cipher.AEAD, len(c.SealingKeys))}
	var faults []error
	for _, k := range c.SealingKeys {
		key, err := readKey(k.Secret)
		if err != nil {
			faults = append(faults, fmt.Errorf("sealing key %q: %w", k.ID, err))
			continue
		}
		aead, err := newAEAD(key)
		if err != nil {
			return nil, fmt.Errorf("sealing key %q: %w", k.ID, err)
		}
		v.sealing[k.ID] = aead
	}
	if len(c.SealingKeys) > 0 {
		v.current = c.SealingKeys[0].ID
	}
	hashKey, err := readKey(c.HashKey)
	if err != nil {
		faults = append(faults, fmt.Errorf("hash key: %w", err))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("open vault: %w", err)
	}
	// One key in the configuration, two uses: a derived key each, so that neither output can stand for the other.
	if v.panHash, err = hkdf.Key(sha256.New, hashKey, nil, "schemegate card number hash 1", vaultKeyBytes); err != nil {
		return nil, fmt.Errorf("derive card number hash key: %w", err)
	}
	if v.digestKey, err = hkdf.Key(sha256.New, hashKey, nil, "schemegate digest 1", vaultKeyBytes); err != nil {
		return nil, fmt.Errorf("derive digest key: %w", err)
	}
	return v, nil
}

func readKey(s configs.Secret) ([]byte, error) {
	text, err := s.Read()
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, errors.New("a key is base64 text")
	}
	if len(key) != vaultKeyBytes {
		return nil, fmt.Errorf("a key has %d bytes, this one has %d", vaultKeyBytes, len(key))
	}
	return key, nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// NewVaultKey makes a fresh key in the form the vault reads.
func NewVaultKey() string {
	key := make([]byte, vaultKeyBytes)
	rand.Read(key)
	return base64.StdEncoding.EncodeToString(key) + "\n"
}

// Seal encrypts a card number for the row of one authorisation. The row's id is bound in, so a sealed number copied
// into another row does not open there.
func (v *Vault) Seal(owner uuid.UUID, pan iso8583.CardNumber) (sealed []byte, keyID string) {
	aead := v.sealing[v.current]
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(pan.Reveal())+aead.Overhead())
	rand.Read(nonce)
	return aead.Seal(nonce, nonce, []byte(pan.Reveal()), owner[:]), v.current
}

// Open decrypts what Seal made for the same row.
func (v *Vault) Open(owner uuid.UUID, sealed []byte, keyID string) (iso8583.CardNumber, error) {
	aead, ok := v.sealing[keyID]
	if !ok {
		return "", fmt.Errorf("open card number: sealing key %q is not configured", keyID)
	}
	if len(sealed) < aead.NonceSize() {
		return "", errors.New("open card number: sealed value is too short")
	}
	plain, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], owner[:])
	if err != nil {
		return "", errors.New("open card number: sealed value does not authenticate")
	}
	return iso8583.CardNumber(plain), nil
}

// HashPAN is the keyed hash by which a card number is found.
func (v *Vault) HashPAN(pan iso8583.CardNumber) []byte {
	mac := hmac.New(sha256.New, v.panHash)
	mac.Write([]byte(pan.Reveal()))
	return mac.Sum(nil)
}

// digested are the elements that go into a message's digest: those the gateway sets itself but for sensitive authentication
// data. Whatever else a message carries is left out, since schemes put verification values into private elements.
var digested = func() map[iso8583.Element]bool {
	elements := maps.Clone(ownedElements)
	for _, sensitive := range []iso8583.Element{iso8583.Track2, iso8583.PINData, iso8583.ICCData, iso8583.MAC} {
		delete(elements, sensitive)
	}
	return elements
}()

// messageDigest is a keyed digest of a message without its sensitive authentication data.
func (v *Vault) messageDigest(m *iso8583.Message) []byte {
	mac := hmac.New(sha256.New, v.digestKey)
	fmt.Fprintf(mac, "%s", m.MTI())
	for _, e := range m.Elements() {
		if digested[e] {
			fmt.Fprintf(mac, "|%d=%s", uint8(e), m.Get(e))
		}
	}
	return mac.Sum(nil)
}
