// Command schemegate stands between a bank's systems and the payment schemes: the daemon, its simulator and its tools in one
// program.
//
// It promises that every command ends with 0 when what it says is so, 1 when it is not or could not be found out, and 2 when it
// was called wrongly; that the daemon stops in the order of dependence, finishing what it began; and that nothing starts with
// a configuration that has a fault.
//
// It never takes a secret from the command line, where every process of the machine can read it, and it decides nothing about
// a payment: here is wiring only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // link profiles name time zones, and a small machine may have none

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

// program is the command line: one field a command, one file a command.
type program struct {
	Serve       serveCommand       `cmd:"" help:"Run the daemon."`
	Demo        demoCmd            `cmd:"" help:"Tell the whole story with real requests, checked."`
	CheckConfig checkConfigCommand `cmd:"" help:"Check a configuration and name everything wrong with it at once."`
	Migrate     migrateCommand     `cmd:"" help:"Bring the database up to this program's schema."`
	Ledger      ledgerCommand      `cmd:"" help:"Read and prove the books."`
	Track       trackCommand       `cmd:"" help:"Show everything known about a reference, as a timeline."`
	Links       linksCommand       `cmd:"" help:"See how the links stand; hold, resume, sign on and off."`
	Exceptions  exceptionsCommand  `cmd:"" help:"See what needs a person."`
	Duties      dutiesCommand      `cmd:"" aliases:"reversals" help:"See what is still owed to a scheme, and resume what it refused."`
	Spec        specCommand        `cmd:"" help:"Check the profile of a scheme, and explain messages."`
	Sim         simCommand         `cmd:"" help:"Play the other side."`
	Keys        keysCommand        `cmd:"" help:"Make keys of the card number vault."`
	APIKey      apiKeyCommand      `cmd:"" name:"api-key" help:"Make bearer keys of the API."`
	Version     versionCommand     `cmd:"" help:"Show which program this is."`
}

// process is what a command may use of its surroundings.
type process struct {
	ctx    context.Context // ends with the first signal
	cut    context.Context // ends with the second one
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// errFound ends a command that has already printed what is wrong.
var errFound = errors.New("faults were found")

func main() {
	ctx, cut, release := signals()
	code := run(process{ctx: ctx, cut: cut, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}, os.Args[1:])
	release()
	os.Exit(code)
}

// run is the program without its process: parse, run, exit code.
func run(p process, args []string) int {
	var commands program
	parser, err := kong.New(&commands, kong.Name("schemegate"), kong.Writers(p.stdout, p.stderr), kong.UsageOnError(),
		kong.Description("A gateway between a bank and the payment schemes: every intent once, every outcome known or being found out."))
	if err != nil { // the struct above, and nothing a user gave
		fmt.Fprintf(p.stderr, "schemegate: %v\n", err)
		return exitFault
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(p.stderr, "schemegate: %v\nTry: schemegate --help\n", err)
		return exitUsage
	}
	switch err := parsed.Run(p); {
	case errors.Is(err, errFound):
		return exitFault
	case err != nil:
		fmt.Fprintf(p.stderr, "schemegate: %v\n", err)
		return exitFault
	}
	return exitOK
}

// signals gives a context that ends with the first SIGINT or SIGTERM, which asks to finish, and one that ends with the second,
// which asks to stop finishing. A third one ends the process as if nobody listened.
func signals() (ctx, cut context.Context, release func()) {
	ctx, stop := context.WithCancel(context.Background())
	cut, stopCut := context.WithCancel(context.Background())
	received := make(chan os.Signal, 2)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for _, end := range []func(){stop, stopCut} {
			select {
			case <-received:
				end()
			case <-done:
				return
			}
		}
		signal.Stop(received)
	}()
	return ctx, cut, func() {
		signal.Stop(received)
		close(done)
		stop()
		stopCut()
	}
}
