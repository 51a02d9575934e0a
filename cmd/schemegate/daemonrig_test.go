package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/ledger/localpg"
)

const (
	// programVariable makes a process of this test binary the program itself, with the arguments it was given.
	programVariable = "SCHEMEGATE_TEST_PROGRAM"

	rigWait = 60 * time.Second
	rigPoll = 3 * time.Millisecond
	// maxRigLog bounds the log lines of one process that are kept.
	maxRigLog = 20_000
	// maxRigLogShown of them are printed when a test fails.
	maxRigLogShown = 60
)

// A child process must become the program before anything of testing runs in it, so TestMain would be too late to be sure. Its
// standard input is a pipe from the test: when the test dies, it ends, and so does the child.
func init() {
	if os.Getenv(programVariable) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitFault)
	}()
	main()
}

// raceEnabled tells whether this test binary was built with the race detector, and so its children too.
var raceEnabled = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// rig is a scheme in this process and a directory with keys and configurations; its daemons are processes that can be killed.
type rig struct {
	t       *testing.T
	dir     string
	program string
	key     string
	entry   string // the key's line of the configuration
	scheme  *sim.Card
	client  *http.Client
	as      *syscall.Credential // who runs the daemons; nil for who runs the tests
}

// rigRoot is a file system in memory where there is one with room, since making a cluster is mostly waiting for the disk.
func rigRoot() string {
	var stat syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &stat) == nil && stat.Bavail*uint64(stat.Bsize) >= 1<<30 {
		return "/dev/shm"
	}
	return os.TempDir()
}

// newRig puts a scheme up, whose late answers come after late.
func newRig(t *testing.T, late time.Duration) *rig {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(rigRoot(), "schemegate-rig-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // the private server's user must pass through when the tests run as root
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	r := &rig{t: t, dir: dir, program: program, client: &http.Client{Transport: transport, Timeout: rigWait}}
	for _, name := range []string{"seal.key", "hash.key"} {
		r.must("keys", "new", filepath.Join(dir, name))
	}
	printed := r.must("api-key", "new", "--tenant", gatewaytest.Tenant, "--name", "core")
	r.key = regexp.MustCompile(`sgk_\S+`).FindString(printed)
	r.entry = regexp.MustCompile(`(?m)^ +- \{.*\}$`).FindString(printed)

	cfg := sim.DefaultCardConfig()
	cfg.LateAfter, cfg.GlueWait = configs.Duration(late), configs.Duration(50*time.Millisecond)
	if r.scheme, err = sim.NewCard(cfg, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.scheme.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// must runs a command of the program in this process.
func (r *rig) must(args ...string) string {
	r.t.Helper()
	var out, errs bytes.Buffer
	if code := run(process{ctx: context.Background(), cut: context.Background(), stdout: &out, stderr: &errs}, args); code != exitOK {
		r.t.Fatalf("%v: exit %d, %s%s", args, code, out.String(), errs.String())
	}
	return out.String()
}

// Times of the daemons' link, short enough to wait for.
const (
	rigAnswerWithin = 400 * time.Millisecond
	rigSendWithin   = 300 * time.Millisecond
	rigLate         = 600 * time.Millisecond
)

// configure writes the configuration of one daemon and returns its file. database is a whole section; profile, which may be
// empty, are further lines of the link's profile.
func (r *rig) configure(instance, database, profile string) string {
	r.t.Helper()
	if !strings.Contains(profile, "answer_within") {
		profile += "\n    answer_within: " + rigAnswerWithin.String()
	}
	return writeFile(r.t, r.dir, instance+".yaml", fmt.Sprintf(`instance: %s
data_dir: data
log: {level: info}
%s
api:
  listen: 127.0.0.1:0
  keys:
%s
admin: {listen: 127.0.0.1:0}
vault:
  sealing_keys: [{id: seal-1, key: {file: seal.key}}]
  hash_key: {file: hash.key}
drain_timeout: 30s
links:
  %s:
    address: %s
    acquirer_id: "12345678901"
    send_within: %s
    reconnect_min: 5ms
    reconnect_max: 50ms
    silence: {policy: reverse, answer_within: 250ms, first_gap: 20ms, max_gap: 200ms, attention_attempts: 100}
    %s
`, instance, database, r.entry, gatewaytest.LinkName, r.scheme.Addr(), rigSendWithin, strings.TrimSpace(profile)))
}

// rigProcess is one life of the program.
type rigProcess struct {
	rig   *rig
	cmd   *exec.Cmd
	stdin io.Closer
	log   rigLog
	ended chan struct{} // closed when the process is over; then waitErr is set

	waitErr error
}

// launch starts the program with some arguments.
func (r *rig) launch(args ...string) *rigProcess {
	r.t.Helper()
	p := &rigProcess{rig: r, cmd: exec.Command(r.program, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), programVariable+"=1")
	p.cmd.Dir = r.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if r.as != nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.as}
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatalf("start the program: %v", err)
	}
	go func() {
		p.waitErr = p.cmd.Wait()
		close(p.ended)
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if r.t.Failed() {
			r.t.Logf("last log lines of process %d:\n%s", p.cmd.Process.Pid, p.log.tail(maxRigLogShown))
		}
	})
	return p
}

// serve starts a daemon and waits until it takes requests and its link is signed on.
func (r *rig) serve(file string) *rigProcess {
	r.t.Helper()
	p := r.launch("serve", "--config", file)
	p.awaitLog(`"ready"`)
	p.awaitLog(`"line signed_on"`)
	return p
}

// awaitLog waits until a line of the log has the text, and returns the line.
func (p *rigProcess) awaitLog(text string) string {
	p.rig.t.Helper()
	line := ""
	p.rig.eventually("the log says "+text, func() bool {
		line = p.log.find(text)
		select {
		case <-p.ended:
			if line == "" {
				p.rig.t.Fatalf("the daemon ended with %v before its log said %s", p.waitErr, text)
			}
		default:
		}
		return line != ""
	})
	return line
}

// kill ends the process the hard way.
func (p *rigProcess) kill() {
	p.rig.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.rig.t.Fatalf("kill: %v", err)
	}
	<-p.ended
}

// signal asks the process to end.
func (p *rigProcess) signal() {
	p.rig.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.rig.t.Fatalf("signal: %v", err)
	}
}

// exit waits for the end and returns the exit code.
func (p *rigProcess) exit() int {
	p.rig.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(rigWait):
		p.rig.t.Fatal("the program does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// api and admin are where the daemon listens, as its log says: they change with each life.
func (p *rigProcess) api() string   { return "http://" + p.log.address(`"API listens"`) }
func (p *rigProcess) admin() string { return "http://" + p.log.address(`"administration listens"`) }

// fetch gets a page; the status is 0 when there was no answer.
func (r *rig) fetch(url string) (status int, body string) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Authorization", "Bearer "+r.key)
	response, err := r.client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// rigReply is what a client got for one POST.
type rigReply struct {
	status   int // 0 when there was no whole answer
	replayed bool
	body     []byte
	view     rigView
}

// rigView is what the tests read of an authorisation or a problem.
type rigView struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Outcome string `json:"outcome"`
	Code    string `json:"code"`
	Sent    string `json:"sent"`
	Retry   string `json:"retry"`
}

// post sends one purchase. GetBody is cleared, or net/http would repeat a POST that has an Idempotency-Key by itself.
func (r *rig) post(api, key string, body []byte) rigReply {
	request, err := http.NewRequest(http.MethodPost, api+"/v1/authorizations", bytes.NewReader(body))
	if err != nil {
		return rigReply{}
	}
	request.GetBody = nil
	request.Header.Set("Authorization", "Bearer "+r.key)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := r.client.Do(request)
	if err != nil {
		return rigReply{}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return rigReply{}
	}
	reply := rigReply{status: response.StatusCode, replayed: response.Header.Get("Idempotent-Replayed") == "true", body: text}
	if err := json.Unmarshal(text, &reply.view); err != nil {
		r.t.Errorf("answer of status %d is not JSON: %v", reply.status, err)
	}
	return reply
}

func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	if !within(rigWait, holds) {
		r.t.Fatalf("never: %s", what)
	}
}

// within polls a condition until it holds; false when it does not in time.
func within(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(rigPoll) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// metric sums a counter or gauge over its labels.
func (r *rig) metric(p *rigProcess, name string) float64 {
	r.t.Helper()
	status, text := r.fetch(p.admin() + "/metrics")
	if status != http.StatusOK {
		r.t.Fatalf("metrics: %d %s", status, text)
	}
	found, sum := false, 0.0
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &value); err != nil {
			r.t.Fatalf("metric %s: %v", name, err)
		}
		found, sum = true, sum+value
	}
	if !found {
		r.t.Fatalf("no metric %s", name)
	}
	return sum
}

// openPool connects to a database as its owner.
func (r *rig) openPool(url string) *pgxpool.Pool {
	r.t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(pool.Close)
	return pool
}

// stopLeftPostgres ends a private server that killed daemons left.
func (r *rig) stopLeftPostgres(dataDir string) {
	server, err := localpg.Start(context.Background(), localpg.Config{DataDir: dataDir}, zap.NewNop())
	if err != nil {
		r.t.Errorf("adopt the server to stop it: %v", err)
		return
	}
	if err := server.Stop(context.Background()); err != nil {
		r.t.Errorf("stop the server: %v", err)
	}
}

// rigLog takes a process's output, line by line.
type rigLog struct {
	mu      sync.Mutex // protects the following
	lines   []string
	partial []byte
}

func (l *rigLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		end := bytes.IndexByte(l.partial, '\n')
		if end < 0 {
			return len(p), nil
		}
		if len(l.lines) < maxRigLog {
			l.lines = append(l.lines, string(l.partial[:end]))
		}
		l.partial = l.partial[end+1:]
	}
}

// find gives the newest line that has the text, "" when none has.
func (l *rigLog) find(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range slices.Backward(l.lines) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

func (l *rigLog) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-n):], "\n")
}

// address is the address that a line with the text names.
func (l *rigLog) address(text string) string {
	var entry struct {
		Address string `json:"address"`
	}
	if json.Unmarshal([]byte(l.find(text)), &entry) != nil || entry.Address == "" {
		return "127.0.0.1:1" // nobody listens there
	}
	return entry.Address
}
