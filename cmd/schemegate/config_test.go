package main

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/reversal"
)

var exampleFile = filepath.Join("..", "..", "configs", "schemegate.yaml")

func TestExampleConfigurationShowsTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	var link gateway.LinkConfig
	link.SetDefaults()
	link.Silence = new(reversal.Policy)
	link.Silence.SetDefaults()
	link.Silence.Policy = reversal.ReversePolicy
	// What has no default, and what the loader makes absolute.
	link.Address, link.AcquirerID = c.Gateway.Links["visa-a"].Address, c.Gateway.Links["visa-a"].AcquirerID
	want.DataDir, want.Database.Private.DataDir = c.DataDir, c.DataDir
	want.API.Keys, want.Gateway.Vault, want.Gateway.DefaultLink = c.API.Keys, c.Gateway.Vault, "visa-a"
	want.Gateway.Links = map[string]gateway.LinkConfig{"visa-a": link}
	emptyIsNone := cmp.FilterValues(func(a, b any) bool { return isEmpty(a) && isEmpty(b) }, cmp.Ignore())
	if diff := cmp.Diff(want, c, emptyIsNone); diff != "" {
		t.Errorf("the example differs from the defaults (-default +example):\n%s", diff)
	}
	dir, err := filepath.Abs(filepath.Dir(exampleFile))
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir != filepath.Join(dir, "data") || c.Gateway.Vault.HashKey.File != filepath.Join(dir, "keys", "hash.key") {
		t.Errorf("relative paths start elsewhere: %s, %s", c.DataDir, c.Gateway.Vault.HashKey.File)
	}
}

func isEmpty(v any) bool {
	r := reflect.ValueOf(v)
	return (r.Kind() == reflect.Slice || r.Kind() == reflect.Map) && r.Len() == 0
}

// notInExample are the other place of a secret, and one that an empty database.url refuses; comments of the example show both.
var notInExample = []string{"database.password", "vault.hash_key.env"}

func TestExampleConfigurationIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]any
	if err := yaml.Unmarshal(text, &example); err != nil {
		t.Fatal(err)
	}
	var missing []string
	compareKeys(reflect.TypeFor[config](), example, "", &missing)
	slices.Sort(missing)
	if !slices.Equal(missing, notInExample) {
		t.Errorf("the example lacks %v, want %v", missing, notInExample)
	}
	if !strings.Contains(string(text), "password: {env:") {
		t.Error("the example does not speak of database.password")
	}
}

// compareKeys walks the configuration's structs beside the example and notes the keys the example lacks.
func compareKeys(structure reflect.Type, example map[string]any, path string, missing *[]string) {
	for i := range structure.NumField() {
		field := structure.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name == "-" {
			continue
		}
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if options == "inline" {
			compareKeys(inner, example, path, missing)
			continue
		}
		value, there := example[name]
		if !there {
			*missing = append(*missing, path+name)
			continue
		}
		child, isMap := value.(map[string]any)
		switch {
		case inner.Kind() == reflect.Struct && isMap:
			compareKeys(inner, child, path+name+".", missing)
		case name == "links":
			for _, link := range slices.Sorted(maps.Keys(child)) {
				compareKeys(inner.Elem(), child[link].(map[string]any), path+"links."+link+".", missing)
			}
		}
	}
}

const goodConfig = `data_dir: data
api:
  keys:
    - {tenant: bank-a, name: core, sha256: 0000000000000000000000000000000000000000000000000000000000000001}
vault:
  sealing_keys:
    - {id: seal-1, key: {file: seal.key}}
  hash_key: {file: hash.key}
links:
  visa-a:
    address: 127.0.0.1:8583
    acquirer_id: "12345678901"
    silence: {policy: reverse}
`

// checked runs check-config on a file beside good keys.
func checked(t *testing.T, text string) (code int, lines []string) {
	t.Helper()
	dir := t.TempDir()
	for _, key := range []string{"seal.key", "hash.key"} {
		if code, _, stderr := command(t, "keys", "new", filepath.Join(dir, key)); code != exitOK {
			t.Fatal(stderr)
		}
	}
	file := writeFile(t, dir, "schemegate.yaml", text)
	code, stdout, stderr := command(t, "check-config", file)
	if stderr != "" {
		t.Fatalf("stderr: %s", stderr)
	}
	stdout = strings.ReplaceAll(stdout, dir+string(filepath.Separator), "")
	return code, strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
}

func TestCheckConfigSaysOK(t *testing.T) {
	t.Parallel()
	if code, lines := checked(t, goodConfig); code != exitOK || len(lines) != 1 || lines[0] != "ok" {
		t.Fatalf("exit %d, %q", code, lines)
	}
}

func TestCheckConfigSaysOnceThatASecretHasNoPlace(t *testing.T) {
	t.Parallel()
	text := strings.Replace(goodConfig, "  hash_key: {file: hash.key}\n", "", 1)
	if code, lines := checked(t, text); code != exitFault || len(lines) != 1 || !strings.Contains(lines[0], "vault.hash_key: a secret needs its place") {
		t.Fatalf("exit %d, %q", code, lines)
	}
}

func TestCheckConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	code, lines := checked(t, `data_dir: data
colour: red
database: {pool_connections: 1}
log: {level: loud}
api:
  listen: 8480
  max_connections: many
  keys:
    - {tenant: Bank A, name: core, sha256: canary-key}
admin: {listen: 127.0.0.1:8481}
drain_timeout: 10
vault:
  sealing_keys:
    - {id: seal-1, key: {file: missing.key}}
  hash_key: {env: SCHEMEGATE_TEST_KEY_NOBODY_SET}
links:
  visa-a:
    address: nowhere
    acquirer_id: "12A"
    answer_within: 0s
    echo_interval: "true"
    silence: {policy: reverse, attention_attempts: 0}
  visa-b:
    address: 127.0.0.1:8583
    acquirer_id: "12345678901"
`)
	if code != exitFault {
		t.Errorf("exit %d", code)
	}
	want := []string{
		"schemegate.yaml:2: colour: unknown key",
		`schemegate.yaml:3: database.pool_connections: "1": 4 to 200`,
		`schemegate.yaml:4: log.level: "loud": debug, info, warn or error`,
		`schemegate.yaml:6: api.listen: "8480": an address is host:port`,
		`schemegate.yaml:7: api.max_connections: "many": `,
		`schemegate.yaml:9: api.keys.0.tenant: "Bank A": `,
		`schemegate.yaml:9: api.keys.0.sha256: the SHA-256 of a key`,
		`schemegate.yaml:11: drain_timeout: "10": a duration needs a unit`,
		`schemegate.yaml:14: vault.sealing_keys.0.key: read secret: file missing.key: does not exist`,
		`schemegate.yaml:15: vault.hash_key: read secret: environment variable SCHEMEGATE_TEST_KEY_NOBODY_SET is not set`,
		`schemegate.yaml:16: default_link: `,
		`schemegate.yaml:18: links.visa-a.address: "nowhere": an address is host:port`,
		`schemegate.yaml:19: links.visa-a.acquirer_id: "12A": 1 to 11 digits`,
		`schemegate.yaml:20: links.visa-a.answer_within: "0s": above 0s`,
		`schemegate.yaml:20: links.visa-a.send_within: `,
		`schemegate.yaml:21: links.visa-a.echo_interval: "true": a duration is a number with a unit`,
		`schemegate.yaml:22: links.visa-a.silence.attention_attempts: "0": 1 to 1000`,
		`schemegate.yaml:23: links.visa-b.silence: every link needs a silence policy`,
	}
	// Faults of keys that the file lacks are shown at the nearest key above, so only their number of lines is open.
	for _, w := range want {
		path := w[strings.Index(w, ": ")+2:]
		if !slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, w) || (strings.HasSuffix(w, ": ") && strings.Contains(line, path))
		}) {
			t.Errorf("no line says %q", w)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%d lines, want %d:\n%s", len(lines), len(want), strings.Join(lines, "\n"))
	}
	if strings.Contains(strings.Join(lines, "\n"), "canary-key") {
		t.Error("what stands in the place of a hash is quoted")
	}
}

func TestS13_ProfileWithoutSilencePolicyIsRefused(t *testing.T) {
	t.Parallel()
	without := strings.Replace(goodConfig, "    silence: {policy: reverse}\n", "", 1)
	unnamed := strings.Replace(goodConfig, "{policy: reverse}", "{response_code: \"91\"}", 1)
	for text, want := range map[string]string{without: "links.visa-a.silence: every link needs a silence policy", unnamed: "links.visa-a.silence.policy: "} {
		code, lines := checked(t, text)
		if code != exitFault || len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("exit %d, %q; want %q", code, lines, want)
		}
		file := writeFile(t, t.TempDir(), "schemegate.yaml", text)
		if code, _, stderr := command(t, "serve", "--config", file); code != exitFault || !strings.Contains(stderr, want) {
			t.Errorf("serve: exit %d, %q", code, stderr)
		}
	}
}

func TestS71_DurationGivenAsTrueOrWithoutUnit(t *testing.T) {
	t.Parallel()
	for value, rule := range map[string]string{
		`"true"`: "a duration is a number with a unit (ms, s, m, h), like 10s or 1m30s",
		`true`:   "a duration is a number with a unit (ms, s, m, h), like 10s or 1m30s",
		`10`:     "a duration needs a unit, like 10s",
		`-1s`:    "a duration is not negative",
	} {
		text := strings.Replace(goodConfig, "silence: {policy: reverse}", "silence: {policy: reverse, reversal_delay: "+value+"}", 1)
		code, lines := checked(t, text)
		want := `schemegate.yaml:13: links.visa-a.silence.reversal_delay: "` + strings.Trim(value, `"`) + `": ` + rule
		if code != exitFault || len(lines) != 1 || lines[0] != want {
			t.Errorf("%s: exit %d, %q; want %q", value, code, lines, want)
		}
	}
}

func TestDatabaseURLHoldsNoPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:canary@h/d":          "has no password in it",
		"postgres://u@h/d?password=canary": "has no password in it",
		"host=h password=canary":           "a URL like postgres://",
		"mysql://u@h/canary":               "a URL like postgres://",
		"postgres://u@h:canary/d":          "a URL like postgres://",
		"postgres://u@h/d?sslmode=canary":  "a URL that PostgreSQL's clients read",
	} {
		code, lines := checked(t, goodConfig+"database: {url: '"+url+"'}\n")
		if code != exitFault || len(lines) != 1 || !strings.Contains(lines[0], "schemegate.yaml:14: database.url: "+want) || strings.Contains(lines[0], "canary") {
			t.Errorf("%s: exit %d, %q", url, code, lines)
		}
	}
	t.Run("from its place", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		c := databaseConfig{URL: "postgres://u@h1:5432,h2:5432/d?target_session_attrs=read-write"}
		c.Password.File = writeFile(t, dir, "password", "a b@c/d\n")
		got, err := c.connectionURL()
		if want := "postgres://u:a%20b%40c%2Fd@h1:5432,h2:5432/d?target_session_attrs=read-write"; err != nil || got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	})
}
