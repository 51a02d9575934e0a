package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/api"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// command runs the program as a shell would, signals apart.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	code = run(process{ctx: ctx, cut: ctx, stdout: &out, stderr: &errs}, args)
	return code, out.String(), errs.String()
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestUsageIsTold(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"nothing"}, {"serve"}, {"check-config", "missing.yaml"}, {"api-key", "new", "--tenant", "a"}, {"ledger", "balances", "--at", "noon"}} {
		if code, _, stderr := command(t, args...); code != exitUsage || !strings.Contains(stderr, "schemegate --help") {
			t.Errorf("%v: exit %d, %q", args, code, stderr)
		}
	}
}

func TestVersionNamesTheProgram(t *testing.T) {
	t.Parallel()
	if code, stdout, _ := command(t, "version"); code != exitOK || !strings.HasPrefix(stdout, "schemegate ") || !strings.Contains(stdout, "go1.") {
		t.Fatalf("exit %d, %q", code, stdout)
	}
}

func TestKeyFileIsPrivateAndNeverOverwritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys", "seal.key")
	code, stdout, stderr := command(t, "keys", "new", file)
	if code != exitOK || !strings.Contains(stdout, file) {
		t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stdout, strings.TrimSpace(string(first))) {
		t.Fatal("the key was printed")
	}
	if code, _, stderr := command(t, "keys", "new", file); code != exitFault || !strings.Contains(stderr, "never overwritten") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	if second, err := os.ReadFile(file); err != nil || !bytes.Equal(first, second) {
		t.Fatalf("the key changed, %v", err)
	}
}

func TestAPIKeyEntryIsTheHashOfTheKey(t *testing.T) {
	t.Parallel()
	code, stdout, _ := command(t, "api-key", "new", "--tenant", "bank-a", "--name", "core")
	key := regexp.MustCompile(`sgk_\S+`).FindString(stdout)
	line := regexp.MustCompile(`(?m)^ +- \{.*\}$`).FindString(stdout)
	if code != exitOK || key == "" || line == "" {
		t.Fatalf("exit %d, %q", code, stdout)
	}
	var loaded struct {
		Keys []api.Key `yaml:"keys"`
	}
	if err := configs.Load("printed", []byte("keys:\n"+line+"\n"), &loaded).Err(); err != nil {
		t.Fatalf("the printed line: %v", err)
	}
	hash := sha256.Sum256([]byte(key))
	want := api.Key{Tenant: "bank-a", Name: "core", SHA256: hex.EncodeToString(hash[:])}
	if len(loaded.Keys) != 1 || loaded.Keys[0] != want {
		t.Fatalf("got %+v, want %+v", loaded.Keys, want)
	}
	if strings.Contains(stdout, "operator") {
		t.Errorf("a right that nobody asked for: %q", stdout)
	}
	_, stdout, _ = command(t, "api-key", "new", "--tenant", "bank-a", "--name", "ops", "--operator")
	line = regexp.MustCompile(`(?m)^ +- \{.*, operator: true\}$`).FindString(stdout)
	if err := configs.Load("printed", []byte("keys:\n"+line+"\n"), &loaded).Err(); err != nil || line == "" || len(loaded.Keys) != 1 || !loaded.Keys[0].Operator {
		t.Fatalf("the printed line %q gives %+v, %v", line, loaded.Keys, err)
	}
	if code, _, stderr := command(t, "api-key", "new", "--tenant", "Bank A", "--name", "core"); code != exitFault || !strings.Contains(stderr, "lower-case") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
}

func TestSimulatedSchemeListensUntilTold(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		done <- run(process{ctx: ctx, cut: ctx, stdout: in, stderr: io.Discard}, []string{"sim", "card", "--listen", "127.0.0.1:0"})
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	conn, err := net.Dial("tcp", strings.TrimSpace(strings.TrimPrefix(line, "card scheme on ")))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	conn.Close()
	cancel()
	if code := <-done; code != exitOK {
		t.Fatalf("exit %d", code)
	}
	faulty := writeFile(t, t.TempDir(), "scheme.yaml", "listen: ''\ncolour: red\n")
	if code, _, stderr := command(t, "sim", "card", "--config", faulty); code != exitFault || !strings.Contains(stderr, "colour: unknown key") || !strings.Contains(stderr, "listen: ") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
}
