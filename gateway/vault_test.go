package gateway_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

func openVault(t *testing.T, c gateway.VaultConfig) *gateway.Vault {
	t.Helper()
	v, err := gateway.OpenVault(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// mustNotOpen wants the sealed number refused, by an error that holds nothing of it.
func mustNotOpen(t *testing.T, v *gateway.Vault, owner uuid.UUID, sealed []byte, keyID string) {
	t.Helper()
	pan, err := v.Open(owner, sealed, keyID)
	if err == nil || pan != "" {
		t.Fatalf("opened")
	}
	if holds(err.Error(), gatewaytest.PAN) {
		t.Fatal("the error holds the card number")
	}
}

func TestVaultSealsForOneRow(t *testing.T) {
	t.Parallel()
	v := openVault(t, gatewaytest.NewVault(t))
	owner, other := uuid.New(), uuid.New()
	sealed, keyID := v.Seal(owner, gatewaytest.PAN)
	if pan, err := v.Open(owner, sealed, keyID); err != nil || pan.Reveal() != gatewaytest.PAN {
		t.Fatalf("open: %v", err)
	}
	if holds(string(sealed), gatewaytest.PAN) {
		t.Fatal("sealed in clear")
	}
	if again, _ := v.Seal(owner, gatewaytest.PAN); bytes.Equal(again, sealed) {
		t.Fatal("two seals of one number are equal")
	}
	mustNotOpen(t, v, other, sealed, keyID) // copied into another row
	mustNotOpen(t, v, owner, sealed, "k2")
	for i := range sealed {
		tampered := bytes.Clone(sealed)
		tampered[i] ^= 1
		mustNotOpen(t, v, owner, tampered, keyID)
	}
	for _, n := range []int{0, 1, 11, 12, len(sealed) - 1} {
		mustNotOpen(t, v, owner, sealed[:n], keyID)
	}
	mustNotOpen(t, openVault(t, gatewaytest.NewVault(t)), owner, sealed, keyID) // the same id, another key
}

func TestVaultRotation(t *testing.T) {
	t.Parallel()
	old, fresh := gatewaytest.NewVault(t), gatewaytest.NewVault(t)
	owner := uuid.New()
	sealed, keyID := openVault(t, old).Seal(owner, gatewaytest.PAN)
	second := fresh.SealingKeys[0]
	second.ID = "k2"
	rotated := gateway.VaultConfig{SealingKeys: []gateway.SealingKey{second, old.SealingKeys[0]}, HashKey: old.HashKey}
	v := openVault(t, rotated)
	if pan, err := v.Open(owner, sealed, keyID); err != nil || pan.Reveal() != gatewaytest.PAN {
		t.Fatalf("the old key does not open: %v", err)
	}
	if _, id := v.Seal(owner, gatewaytest.PAN); id != "k2" {
		t.Fatalf("sealed with %s, want the first key", id)
	}
	if !bytes.Equal(v.HashPAN(gatewaytest.PAN), openVault(t, old).HashPAN(gatewaytest.PAN)) {
		t.Fatal("rotation of the sealing key changes the keyed hash")
	}
	if bytes.Equal(v.HashPAN(gatewaytest.PAN), openVault(t, fresh).HashPAN(gatewaytest.PAN)) || bytes.Equal(v.HashPAN(gatewaytest.PAN), v.HashPAN("4000000000000002")) {
		t.Fatal("the hash does not depend on its key or on the number")
	}
	rotated.SealingKeys = rotated.SealingKeys[:1]
	mustNotOpen(t, openVault(t, rotated), owner, sealed, keyID) // retired too early
}

func TestVaultNamesEveryBadKeyAndShowsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) configs.Secret {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return configs.Secret{File: path}
	}
	const short, text = "c2VjcmV0LXNlY3JldA==", "not-base64-secret!"
	c := gateway.VaultConfig{SealingKeys: []gateway.SealingKey{{ID: "short", Secret: file("a", short)}, {ID: "text", Secret: file("b", text)}}, HashKey: file("c", "")}
	_, err := gateway.OpenVault(c)
	if err == nil {
		t.Fatal("opened with bad keys")
	}
	for _, want := range []string{"short", "text", "hash key"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), short) || strings.Contains(err.Error(), text) {
		t.Errorf("%q shows a key", err)
	}
	var faults configs.Faults
	if c.CheckKeys("vault", &faults); len(faults) != 3 {
		t.Errorf("faults %v", faults)
	}
}

// With two keys a stand opens what a former life sealed with the first: the reversal goes out after the rotation.
func TestReversalAfterARotation(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	setRules(t, s, sim.Rule{When: sim.Match{MTI: reversals}, Then: lost})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	second := gatewaytest.NewVault(t).SealingKeys[0]
	second.ID = "k2"
	s.Config.Vault.SealingKeys = []gateway.SealingKey{second, s.Config.Vault.SealingKeys[0]}
	setRules(t, s)
	s.Start(t)
	s.AwaitState(t, v.ID, "reversed")
	undone := s.Received(iso8583.MTIReversalAdvice, iso8583.MTIReversalAdvice.Repeat())
	if last := undone[len(undone)-1]; last.Card != iso8583.MaskPAN(gatewaytest.PAN) {
		t.Fatalf("the reversal carries card %q", last.Card)
	}
}
