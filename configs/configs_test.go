package configs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// element is a scalar with its own reading, used as a map key too, as data elements are.
type element uint8

func (e *element) UnmarshalText(text []byte) error {
	if string(text) != "41" && string(text) != "7" {
		return errors.New("a data element is 7 or 41 here")
	}
	*e = element(len(text))
	return nil
}

type timers struct {
	EchoInterval Duration      `yaml:"echo_interval"`
	Plain        time.Duration `yaml:"plain"`
}

type linkConfig struct {
	Address  string             `yaml:"address"`
	Required bool               `yaml:"required"`
	Attempts int                `yaml:"attempts"`
	Small    uint8              `yaml:"small"`
	Jitter   float64            `yaml:"jitter"`
	Elements map[element]string `yaml:"elements"`
	Keys     []element          `yaml:"keys"`
	Token    string             `yaml:"token" secret:"true"`
	Inner    *timers            `yaml:"inner"`
	timers   `yaml:",inline"`
	hidden   bool // not exported, so no key
}

func (c *linkConfig) SetDefaults() {
	*c = linkConfig{Attempts: 3, hidden: true, timers: timers{EchoInterval: Duration(time.Minute)}}
}

type fileConfig struct {
	Listen string                `yaml:"listen"`
	Key    Secret                `yaml:"key"`
	Links  map[string]linkConfig `yaml:"links"`
	Peers  []linkConfig          `yaml:"peers"`
	Skip   string                `yaml:"-"`
	Names  []string
}

func load(t *testing.T, text string) (fileConfig, string) {
	t.Helper()
	c := fileConfig{Listen: "127.0.0.1:0", Names: []string{"default"}}
	faults := Load("schemegate.yaml", []byte(text), &c)
	return c, faults.Error()
}

func TestLoadReadsEveryKindOfValue(t *testing.T) {
	t.Parallel()
	got, faults := load(t, `
# a comment
key: {file: /etc/key}
links:
  visa:
    address: 000042        # digits stay as written
    required: true
    small: 255
    jitter: 0.5
    elements: {41: TERM0001, "7": two words}
    keys: [7, 41]
    echo_interval: 1m30s
    plain: 250ms
    inner:
      echo_interval: "2s"
  bare: {}
  commented:
    # nothing
peers:
- address: "yes"
- attempts: -7
`)
	if faults != "" {
		t.Fatalf("faults: %s", faults)
	}
	want := fileConfig{
		Listen: "127.0.0.1:0", Names: []string{"default"}, Key: Secret{File: "/etc/key"},
		Links: map[string]linkConfig{
			"visa": {Address: "000042", Required: true, Attempts: 3, hidden: true, Small: 255, Jitter: 0.5, Keys: []element{1, 2},
				Elements: map[element]string{2: "TERM0001", 1: "two words"},
				Inner:    &timers{EchoInterval: Duration(2 * time.Second)},
				timers:   timers{EchoInterval: Duration(90 * time.Second), Plain: 250 * time.Millisecond}},
			"bare":      {Attempts: 3, hidden: true, timers: timers{EchoInterval: Duration(time.Minute)}},
			"commented": {Attempts: 3, hidden: true, timers: timers{EchoInterval: Duration(time.Minute)}},
		},
		Peers: []linkConfig{
			{Address: "yes", Attempts: 3, hidden: true, timers: timers{EchoInterval: Duration(time.Minute)}},
			{Attempts: -7, hidden: true, timers: timers{EchoInterval: Duration(time.Minute)}},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(linkConfig{}, timers{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestS71_LoadNamesFileLineKeyValueAndRule holds each kind of fault against the whole line that a person reads.
func TestS71_LoadNamesFileLineKeyValueAndRule(t *testing.T) {
	t.Parallel()
	visa := func(lines string) string { return "links:\n  visa:\n    " + lines }
	for name, tt := range map[string]struct{ text, want string }{
		"duration without unit": {visa("echo_interval: 10"), `:3: links.visa.echo_interval: "10": a duration needs a unit, like 10s`},
		"duration zero":         {visa("echo_interval: 0"), `:3: links.visa.echo_interval: "0": a duration needs a unit, like 10s`},
		"duration true":         {visa("echo_interval: true"), `:3: links.visa.echo_interval: "true": a duration is a number with a unit (ms, s, m, h), like 10s or 1m30s`},
		"duration negative":     {visa("plain: -10s"), `:3: links.visa.plain: "-10s": a duration is not negative`},
		"duration negative bare": {visa("echo_interval: -10"),
			`:3: links.visa.echo_interval: "-10": a duration is not negative and needs a unit, like 10s`},
		"duration empty":       {visa("echo_interval:"), `:3: links.visa.echo_interval: needs a value; leave the key out for its default`},
		"duration list":        {visa("echo_interval: [1s]"), `:3: links.visa.echo_interval: needs a single value`},
		"misspelled key":       {visa("echo_intervall: 10s"), `:3: links.visa.echo_intervall: unknown key; did you mean echo_interval?`},
		"unknown key":          {"zzz: 1", `:1: zzz: unknown key; known here: key, links, listen, names, peers`},
		"skipped key":          {"skip: 1", `:1: skip: unknown key; known here: key, links, listen, names, peers`},
		"hidden key":           {visa("hidden: 1"), `:3: links.visa.hidden: unknown key; known here: address, attempts, echo_interval, elements, inner, jitter, keys, plain, required, small, token`},
		"key twice":            {"listen: a\nkey: {env: K}\nlisten: b", `:3: listen: the key stands here twice; the first is in line 1`},
		"number for text list": {"names: 5", `:1: names: "5": needs a list, like [a, b] or lines that begin with a dash`},
		"text for mapping":     {"links: visa", `:1: links: "visa": needs keys below it`},
		"list for mapping":     {"links: [visa]", `:1: links: needs keys below it`},
		"mapping for text":     {"listen: {a: b}", `:1: listen: needs a single value`},
		"bool for text":        {"listen: true", `:1: listen: "true": needs text; put it in quotation marks if it is meant`},
		"text for bool":        {visa("required: \"true\""), `:3: links.visa.required: "true": needs true or false`},
		"yes for bool":         {visa("required: yes"), `:3: links.visa.required: "yes": needs true or false`},
		"text for number":      {visa("attempts: ten"), `:3: links.visa.attempts: "ten": needs a whole number from -9223372036854775808 to 9223372036854775807`},
		"quoted number":        {visa("attempts: \"10\""), `:3: links.visa.attempts: "10": needs a whole number from -9223372036854775808 to 9223372036854775807`},
		"number too large":     {visa("small: 256"), `:3: links.visa.small: "256": needs a whole number from 0 to 255`},
		"number padded":        {visa("small: 010"), `:3: links.visa.small: "010": needs a whole number from 0 to 255`},
		"number hex":           {visa("small: 0x10"), `:3: links.visa.small: "0x10": needs a whole number from 0 to 255`},
		"text for float":       {visa("jitter: much"), `:3: links.visa.jitter: "much": needs a number, like 0.5`},
		"own type":             {visa("keys: [7, 11]"), `:3: links.visa.keys.1: "11": a data element is 7 or 41 here`},
		"own type as key":      {visa("elements: {42: x}"), `:3: links.visa.elements.42: "42": a data element is 7 or 41 here`},
		"same key in two ways": {visa("elements: {7: x, \"7\": y}"), `:3: links.visa.elements.7: the key stands here twice; the first is in line 3`},
		"in a list":            {"peers:\n- address: a\n- adress: b", `:3: peers.1.adress: unknown key; did you mean address?`},
		"anchor":               {"names: &a [b]", `:1: names: anchors, aliases, merges and tags are not supported: write the value out`},
		"tag":                  {"listen: !!str x", `:1: listen: anchors, aliases, merges and tags are not supported: write the value out`},
		"two documents":        {"listen: a\n---\nlisten: b", `:3: a configuration file has one document only`},
		"not a mapping":        {"just text", `:1: "just text": needs keys below it`},
		"broken":               {"listen: [a", `:1: is not YAML that can be read: sequence end token ']' not found`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, got := load(t, tt.text); got != "schemegate.yaml"+tt.want {
				t.Errorf("fault\n got %s\nwant schemegate.yaml%s", got, tt.want)
			}
		})
	}
}

func TestLoadCollectsAllFaultsInOrderOfLines(t *testing.T) {
	t.Parallel()
	_, got := load(t, "links:\n  visa:\n    attempts: many\n    echo_interval: 5\n    adress: x\nlisten: [1]\nkey: {flie: x}\n")
	want := `schemegate.yaml:3: links.visa.attempts: "many": needs a whole number from -9223372036854775808 to 9223372036854775807
schemegate.yaml:4: links.visa.echo_interval: "5": a duration needs a unit, like 10s
schemegate.yaml:5: links.visa.adress: unknown key; did you mean address?
schemegate.yaml:6: listen: needs a single value
schemegate.yaml:7: key.flie: unknown key; did you mean file?`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLoadGivesColumns(t *testing.T) {
	t.Parallel()
	var c fileConfig
	faults := Load("f", []byte("links: {visa: {attempts: x}}"), &c)
	if len(faults) != 1 || faults[0].Line != 1 || faults[0].Column != 26 {
		t.Errorf("fault at %+v, want line 1 column 26", faults)
	}
}

func TestLoadNeverQuotesSecrets(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"links: {visa: {token: [hunter2]}}",
		"links: {visa: {token: true}}\nkey: hunter2",
		"key: [hunter2]",
		"key: {file: {hunter2: hunter2x}}",
		"key: \"hunter2",
		"key:\n  file: 'hunter2\n",
		"key: hunter2\n nonsense: {",
	} {
		_, got := load(t, text)
		if got == "" {
			t.Errorf("%q: no fault", text)
		}
		if strings.Contains(got, "hunter2") || strings.Contains(got, `"true"`) {
			t.Errorf("%q: the fault quotes a secret: %s", text, got)
		}
	}
}

func TestLoadBoundsSizeAndNesting(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"size":     strings.Repeat("# comment\n", maxFileBytes/10+1),
		"brackets": "names: " + strings.Repeat("[", 100_000),
		"braces":   "names: " + strings.Repeat("{a: ", 100_000),
		"dashes":   "names:\n" + strings.Repeat("- ", 100_000),
	} {
		if _, got := load(t, text); !strings.Contains(got, "a configuration file") || !strings.Contains(got, "at most") {
			t.Errorf("%s: %.200s", name, got)
		}
	}
}

func TestLoadEmptyFileKeepsDefaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		c, faults := load(t, text)
		if faults != "" || c.Listen != "127.0.0.1:0" || len(c.Names) != 1 {
			t.Errorf("%q: %+v, faults %s", text, c, faults)
		}
	}
}

func TestLoadNeedsAPointerToAStruct(t *testing.T) {
	t.Parallel()
	for _, dst := range []any{nil, fileConfig{}, (*fileConfig)(nil), new(string)} {
		if len(Load("f", []byte("a: 1"), dst)) == 0 {
			t.Errorf("%T was accepted", dst)
		}
	}
}

func TestLocateFindsLinesByPath(t *testing.T) {
	t.Parallel()
	const text = `listen: a
links:
  visa:
    address: x
    timers:
      echo: 10s
  dot.ted:
    address: y
peers:
- name: one
  address: p
- name: two
  address: q
`
	for path, want := range map[string]int{
		"listen": 1, "links": 2, "links.visa": 3, "links.visa.address": 4, "links.visa.timers": 5, "links.visa.timers.echo": 6,
		"links.visa.missing": 3, "links.visa.address.deeper": 4, "links.dot.ted.address": 8, "links.amex": 2,
		"peers": 9, "peers.0": 10, "peers.1.address": 13, "peers.two.address": 13, "peers.two.missing": 12, "peers.7": 9, "peers.-1": 9,
		"missing": 1, "": 0,
	} {
		var f Faults
		f.Add(path, "rule", nil)
		if got := f.Locate("f.yaml", []byte(text)); got[0].Line != want || got[0].File != "f.yaml" {
			t.Errorf("%s: line %d of %q, want %d", path, got[0].Line, got[0].File, want)
		}
	}
}

func TestLocateSortsAndKeepsKnownLines(t *testing.T) {
	t.Parallel()
	var f Faults
	f.Add("b", "rule b", "value")
	f.Add("a", "rule a", 5)
	f = append(f, Fault{File: "other", Line: 7, Path: "a", Rule: "known"})
	got := f.Locate("f", []byte("a: 1\nb: 2\n")).Error()
	if want := "f:1: a: \"5\": rule a\nf:2: b: \"value\": rule b\nother:7: a: known"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	t.Parallel()
	var f Faults
	if f.Err() != nil {
		t.Error("no faults are an error")
	}
	for range maxFaults + 5 {
		f.Add("a", "rule", strings.Repeat("x", 10_000))
	}
	lines := strings.Split(f.Err().Error(), "\n")
	if len(lines) != maxFaults+1 || lines[maxFaults] != "and 5 more" || len(lines[0]) > 100 {
		t.Errorf("%d lines, last %q, first %d bytes", len(lines), lines[len(lines)-1], len(lines[0]))
	}
}

func TestFaultsAddNeverQuotesSecretsOrNil(t *testing.T) {
	t.Parallel()
	var f Faults
	f.Add("a", "rule", Secret{File: "/etc/key"})
	f.Add("a", "rule", (*Duration)(nil))
	f.Add("a", "rule", nil)
	if got := f.Error(); got != "a: rule\na: rule\na: rule" {
		t.Errorf("got %s", got)
	}
}

func TestFaultsAddErrorSplitsJoinedErrors(t *testing.T) {
	t.Parallel()
	var f Faults
	f.AddError("a", nil)
	f.AddError("links.visa", errors.Join(errors.New("length: binary2 or ascii4"), fmt.Errorf("Build: %w", errors.New("cause"))))
	f.AddError("", errors.Join(errors.Join(errors.New("mtis.0: is listed twice"))))
	want := "links.visa.length: binary2 or ascii4\nlinks.visa: Build: cause\nmtis.0: is listed twice"
	if got := f.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDurationRoundTrip(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0s", "250ms", "10s", "1m30s", "24h0m0s"} {
		d, err := ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		out, err := d.MarshalText()
		if err != nil || string(out) != text || d.Std().String() != text {
			t.Errorf("%s: %s, %v", text, out, err)
		}
	}
}

func secretFile(t *testing.T, content string, mode os.FileMode) Secret {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return Secret{File: name}
}

func TestSecretRead(t *testing.T) {
	t.Setenv("SCHEMEGATE_TEST_SECRET", "hunter2\n")
	t.Setenv("SCHEMEGATE_TEST_EMPTY", " \n")
	for name, tt := range map[string]struct {
		secret  Secret
		want    string
		problem string
	}{
		"file":           {secretFile(t, "hunter2\r\n", 0o640), "hunter2", ""},
		"one line end":   {secretFile(t, "hunter2\n\n", 0o600), "hunter2\n", ""},
		"environment":    {Secret{Env: "SCHEMEGATE_TEST_SECRET"}, "hunter2", ""},
		"neither":        {Secret{}, "", "a secret needs its place, as file or as env"},
		"both":           {Secret{File: "f", Env: "E"}, "", "not both"},
		"unset":          {Secret{Env: "SCHEMEGATE_TEST_UNSET"}, "", "environment variable SCHEMEGATE_TEST_UNSET is not set"},
		"empty variable": {Secret{Env: "SCHEMEGATE_TEST_EMPTY"}, "", "environment variable SCHEMEGATE_TEST_EMPTY is empty"},
		"empty file":     {secretFile(t, "\n", 0o600), "", "is empty"},
		"world-readable": {secretFile(t, "hunter2", 0o604), "", "everybody on this machine can read or write it (mode 0604): chmod o= it"},
		"world-writable": {secretFile(t, "hunter2", 0o602), "", "everybody on this machine"},
		"missing":        {Secret{File: filepath.Join(t.TempDir(), "none")}, "", "does not exist"},
		"directory":      {Secret{File: t.TempDir()}, "", "is not an ordinary file"},
		"too long":       {secretFile(t, strings.Repeat("hunter2", maxSecretBytes), 0o600), "", "is longer than"},
	} {
		got, err := tt.secret.Read()
		if tt.problem == "" {
			if err != nil || string(got) != tt.want {
				t.Errorf("%s: %q, %v; want %q", name, got, err, tt.want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "hunter2") || got != nil {
			t.Errorf("%s: %q, error %v; want it to say %q and no content", name, got, err, tt.problem)
		}
	}
}

func TestSecretValidate(t *testing.T) {
	t.Parallel()
	var f Faults
	Secret{Env: "X"}.Validate("ok", &f)
	Secret{}.Validate("card_data.key", &f)
	if len(f) != 1 || f[0].Path != "card_data.key" || f[0].Value != "" {
		t.Errorf("faults: %+v", f)
	}
}

// FuzzLoad holds that no text crashes the loader, that every fault says something, and that locating changes no number of faults.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "listen: a", "links:\n  visa:\n    echo_interval: 10", "a: [", "a: {b: c", "- - - a", "? a\n: b", "&a b: *a", "<<: {a: b}",
		"a: |\n  x\n y", "\t", "a: !!int x", "---\n---\n", "names:\n- 1\n- 2", "key: {file: x, env: y}", "a\x00b: c", "listen: 'x", "%YAML 1.2\n---\na: b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c fileConfig
		faults := Load("f", []byte(text), &c)
		for _, fault := range faults {
			if fault.Rule == "" || fault.File != "f" {
				t.Errorf("fault without rule or file: %+v", fault)
			}
		}
		n := len(faults)
		faults.Add("links.visa.address", "rule", nil)
		if got := faults.Locate("f", []byte(text)); len(got) != n+1 {
			t.Errorf("%d faults became %d", n+1, len(got))
		}
	})
}
