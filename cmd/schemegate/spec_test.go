package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSpecLintSaysOKOfTheExamples(t *testing.T) {
	t.Parallel()
	dialects, err := filepath.Glob(filepath.Join("..", "..", "configs", "dialects", "*.yaml"))
	if err != nil || len(dialects) == 0 {
		t.Fatalf("no dialect files: %v", err)
	}
	for _, file := range append(dialects, exampleFile) {
		if code, stdout, stderr := command(t, "spec", "lint", file); code != exitOK || stdout != "ok\n" {
			t.Errorf("%s: exit %d, %s%s", file, code, stdout, stderr)
		}
	}
}

// linted runs spec lint on files beside each other, the first one.
func linted(t *testing.T, files ...string) (code int, lines []string) {
	t.Helper()
	dir := t.TempDir()
	for i := len(files) - 2; i >= 0; i -= 2 {
		writeFile(t, dir, files[i], files[i+1])
	}
	code, stdout, stderr := command(t, "spec", "lint", filepath.Join(dir, files[0]))
	if stderr != "" {
		t.Fatalf("stderr: %s", stderr)
	}
	stdout = strings.ReplaceAll(stdout, dir+string(filepath.Separator), "")
	return code, strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
}

func wantLines(t *testing.T, lines []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestSpecLintNamesEveryFaultOfADialectFile(t *testing.T) {
	t.Parallel()
	code, lines := linted(t, "scheme.yaml", `bitmap: octal
colour: red
mtis: ["0100", "0110", "01"]
elements:
  48: {format: words}
  2: {length: 120}
`)
	if code != exitFault {
		t.Errorf("exit %d", code)
	}
	wantLines(t, lines, "scheme.yaml:1: bitmap: ", "scheme.yaml:2: colour: unknown key", "scheme.yaml:3: mtis.2: ",
		"scheme.yaml:5: elements.48.format: ", "scheme.yaml:6: elements.2.length: ")
}

func TestSpecLintWarns(t *testing.T) {
	t.Parallel()
	code, lines := linted(t, "scheme.yaml", `mtis: ["0100", "0110", "0420"]
elements:
  2: {length: 16}
  37: {absent: true}
`)
	if code != exitOK {
		t.Errorf("exit %d", code)
	}
	wantLines(t, lines, "warning: scheme.yaml:1: mtis: 0420 is taken, and its response 0430 is not",
		"warning: scheme.yaml:3: elements.2.length: card numbers have up to 19 digits", "warning: scheme.yaml:4: elements.37: the gateway sends", "ok")

	links := strings.Replace(goodConfig, "    silence: {policy: reverse}\n", `    silence: {policy: reverse}
    correlation: [4, 41, 43]
    correlation_network: [11, 41]
    correlations: {"0420": [11, 38]}
    stored_elements: [48, 26]
    spec: {file: scheme.yaml}
    sign_on: {elements: {41: TERM0001}}
    echo_elements: {41: TERM0001}
`, 1)
	code, lines = linted(t, "schemegate.yaml", links, "scheme.yaml", "elements: {2: {length: 16}}\n")
	if code != exitOK {
		t.Errorf("exit %d", code)
	}
	wantLines(t, lines,
		"warning: schemegate.yaml:14: links.visa-a.correlation: has neither DE 11 nor DE 37",
		`warning: schemegate.yaml:14: links.visa-a.correlation.0: "DE 4": a partial approval`,
		`warning: schemegate.yaml:14: links.visa-a.correlation.2: "DE 43": a response often lacks it`,
		`warning: schemegate.yaml:15: links.visa-a.correlation_network.1: "DE 41": an answer to network management often lacks it`,
		`warning: schemegate.yaml:16: links.visa-a.correlations.0420.1: "DE 38": only a response has it`,
		`warning: schemegate.yaml:17: links.visa-a.stored_elements.0: "DE 48": hosts put verification values`,
		"warning: schemegate.yaml:18: links.visa-a.spec.elements.2.length: card numbers have up to 19 digits", "ok")
}

// TestS13_SpecLintRefusesAProfileWithoutASilencePolicy, and one that would store what must never be.
func TestS13_SpecLintRefusesAProfileWithoutASilencePolicy(t *testing.T) {
	t.Parallel()
	code, lines := linted(t, "schemegate.yaml", strings.Replace(goodConfig, "    silence: {policy: reverse}\n", "    stored_elements: [35, 45, 52, 55]\n", 1))
	if code != exitFault || len(lines) != 5 {
		t.Errorf("exit %d, %q", code, lines)
	}
	for i, want := range []string{"schemegate.yaml:10: links.visa-a.silence: every link needs a silence policy", "schemegate.yaml:13: links.visa-a.stored_elements.0: ",
		"schemegate.yaml:13: links.visa-a.stored_elements.1: ", "schemegate.yaml:13: links.visa-a.stored_elements.2: ", "schemegate.yaml:13: links.visa-a.stored_elements.3: "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("%q, want %q", lines[i], want)
		}
	}
}

// TestSpecFileOfALink: a file's faults name its own lines, in every command that reads the configuration.
func TestSpecFileOfALink(t *testing.T) {
	t.Parallel()
	config := goodConfig + "    spec:\n      file: scheme.yaml\n      elements: {48: {length: 500}}\n"
	dir := t.TempDir()
	file := writeFile(t, dir, "schemegate.yaml", config)
	writeFile(t, dir, "scheme.yaml", "bitmap: hex\nelements: {48: {format: an}}\n")
	c, err := loadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	spec := c.Gateway.Links["visa-a"].Spec
	if e := spec.Elements[48]; spec.Bitmap != "hex" || e.Format != "an" || e.Length != 500 {
		t.Errorf("%+v", spec)
	}
	code, lines := linted(t, "schemegate.yaml", config, "scheme.yaml", "bitmap: hex\nelements:\n  48: {format: words}\n  # a comment\n  3: {lenght: 6}\n")
	if code != exitFault {
		t.Errorf("exit %d", code)
	}
	wantLines(t, lines, "scheme.yaml:3: elements.48.format: n, an, ", "scheme.yaml:5: elements.3.lenght: unknown key")
	code, _, stderr := command(t, "spec", "decode", "--config", writeFile(t, dir, "faulty.yaml", strings.Replace(config, "scheme.yaml", "nothing.yaml", 1)), "30")
	if code != exitFault || !strings.Contains(stderr, `faulty.yaml:15: links.visa-a.spec.file: "nothing.yaml": there is no such file`) {
		t.Errorf("exit %d, %s", code, stderr)
	}
	code, lines = linted(t, "schemegate.yaml", config)
	if code != exitFault {
		t.Errorf("exit %d", code)
	}
	wantLines(t, lines, `schemegate.yaml:15: links.visa-a.spec.file: "scheme.yaml": there is no such file`)
}

const signOn = "0800\x82\x20\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00" + "1201094501" + "000001" + "001"

const signOnExplained = `0800  network management request (acquirer), ISO 8583:1987
bitmap at 4: 7 11 70
  DE offset  bytes  name                                           value
   7     20     10  Transmission date and time                     1201094501
  11     30      6  Systems trace audit number                     000001
  70     36      3  Network management information code            001
`

// decode runs spec decode with a dump on standard input.
func decode(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx := context.Background()
	code = run(process{ctx: ctx, cut: ctx, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}, append([]string{"spec", "decode"}, args...))
	return code, out.String(), errs.String()
}

func TestSpecDecodeExplainsAMessage(t *testing.T) {
	t.Parallel()
	digits := hex.EncodeToString([]byte(signOn))
	dump := hex.Dump([]byte(signOn))
	for name, run := range map[string]func() (int, string, string){
		"one argument":   func() (int, string, string) { return decode(t, "", digits) },
		"many arguments": func() (int, string, string) { return decode(t, "", digits[:10], digits[10:12], digits[12:]) },
		"standard input": func() (int, string, string) { return decode(t, dump, "-") },
		"by name":        func() (int, string, string) { return decode(t, dump, "--dialect", "1987-ascii", "-") },
	} {
		if code, stdout, stderr := run(); code != exitOK || stdout != signOnExplained {
			t.Errorf("%s: exit %d, %s\n%s", name, code, stderr, stdout)
		}
	}
}

func TestSpecDecodeReadsAsALinkDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, dir, "schemegate.yaml", goodConfig+"    framing: {length: bcd2, includes: header, tpdu: {request: \"6000010002\"}}\n")
	received := hex.EncodeToString([]byte("\x00\x44\x60\x00\x02\x00\x01" + signOn + "\x00\x00"))
	sent := strings.Replace(received, "6000020001", "6000010002", 1)
	want := "frame 1 at offset 0: message of 39 bytes at offset 7\n" + signOnExplained + "frame 2 at offset 46: keep-alive\n"
	for _, stream := range []string{received, sent} {
		for _, link := range [][]string{nil, {"--link", "visa-a"}} {
			code, stdout, stderr := decode(t, stream, append([]string{"--config", file, "--framed", "-"}, link...)...)
			if code != exitOK || stdout != want {
				t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
			}
		}
	}
	code, stdout, _ := decode(t, "0039"+received[4:], "--config", file, "--framed", "-")
	if code != exitFault || !strings.HasPrefix(stdout, "frame 1 at offset 0\nwrong: frame: the length is off by 5: ") {
		t.Errorf("exit %d, %s", code, stdout)
	}
	dialect := writeFile(t, dir, "scheme.yaml", "elements: {11: {absent: true}}\n")
	code, stdout, _ = decode(t, hex.EncodeToString([]byte(signOn)), "--file", dialect, "-")
	if code != exitFault || !strings.Contains(stdout, "wrong: DE 11 at offset 30: the profile's dialect does not have it") || !strings.Contains(stdout, "1987-ascii with a binary bitmap") {
		t.Errorf("exit %d, %s", code, stdout)
	}
}

func TestSpecDecodeTellsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, dir, "schemegate.yaml", goodConfig+"    spec: {bitmap: octal}\n")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"30zz"}, "schemegate: read hex dump: line 1: a character is no hexadecimal digit"},
		{[]string{"--dialect", "1987-ascii", "--file", file, "30"}, "choose dialect: one of"},
		{[]string{"--link", "visa-a", "30"}, "choose dialect: one of"},
		{[]string{"--dialect", "1987-klingon", "30"}, "choose dialect: "},
		{[]string{"--config", file, "--link", "visa-b", "30"}, `has no link "visa-b"`},
		{[]string{"--config", file, "30"}, "schemegate.yaml:14: links.visa-a.spec.bitmap: "},
		{[]string{"--config", writeFile(t, dir, "torn.yaml", "links: ["), "30"}, "is not YAML that can be read"},
		{[]string{"--file", file, "30"}, "schemegate.yaml:1: data_dir: unknown key"},
	} {
		if code, stdout, stderr := decode(t, "", test.args...); code != exitFault || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("%v: exit %d, %s%s", test.args, code, stdout, stderr)
		}
	}
	if code, _, stderr := decode(t, strings.Repeat("30", maxDumpBytes), "-"); code != exitFault || !strings.Contains(stderr, "at most 1048576 bytes") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// TestSpecDecodeNeverShowsCardData: neither of a right message nor of one that is cut or read in another dialect.
func TestSpecDecodeNeverShowsCardData(t *testing.T) {
	t.Parallel()
	const pan = "4111111111111111"
	message := "0100\x70\x00\x00\x00\x20\x00\x10\x00" + "16" + pan + "000000" + "000000001050" + "34" + pan + "D29122011234567890" + "4111111111111111    "
	for i := range len(message) {
		for _, text := range []string{message[:len(message)-i], message[i:], "0100" + message[i:]} {
			_, stdout, stderr := decode(t, hex.EncodeToString([]byte(text)), "-")
			for _, secret := range []string{pan[:7], pan[8:], "D2912", hex.EncodeToString([]byte(pan[:4]))} {
				if strings.Contains(stdout+stderr, secret) {
					t.Fatalf("shows %q:\n%s%s", secret, stdout, stderr)
				}
			}
		}
	}
}

// TestJ24_PublicVector, number 24 of the real-life inputs: a packed message, read as what it is and as what it is not.
func TestJ24_PublicVector(t *testing.T) {
	t.Parallel()
	const vector = "080020200000008000000000000000013239313130303031"
	const want = `0800  network management request (acquirer), ISO 8583:1987
bitmap at 2: 3 11 41
  DE offset  bytes  name                                           value
   3     10      3  Processing code                                000000
  11     13      3  Systems trace audit number                     000001
  41     16      8  Card acceptor terminal identification          29110001
`
	if code, stdout, stderr := decode(t, vector, "--dialect", "1987-bcd", "-"); code != exitOK || stdout != want {
		t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
	}
	const wrong = "wrong: at offset 0: the message type indicator is not 4 digits\nit would be right in dialect 1987-bcd with a binary bitmap\n"
	if code, stdout, _ := decode(t, vector, "-"); code != exitFault || stdout != wrong {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

// TestProfileGuideShowsWhatIsTaken: the YAML of docs/profiles.md stands in a link profile as it is.
func TestProfileGuideShowsWhatIsTaken(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(guide), "```yaml\n    spec:\n")
	block, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("the guide shows no spec")
	}
	file := filepath.Join(t.TempDir(), "dialect.yaml")
	var own strings.Builder
	for line := range strings.Lines(block) {
		own.WriteString(strings.TrimPrefix(line, "      "))
	}
	if err := os.WriteFile(file, []byte(own.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := command(t, "spec", "lint", file); code != exitOK {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
}
