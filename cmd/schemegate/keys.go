package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/schemegate/schemegate/gateway"
)

const (
	keyFileMode = 0o600 // the owner alone
	keyDirMode  = 0o700
)

// keysCommand makes keys of the vault.
type keysCommand struct {
	New keysNewCommand `cmd:"" help:"Write a fresh 256-bit key to a file that only you can read."`
}

type keysNewCommand struct {
	File string `arg:"" placeholder:"FILE" help:"The file to write; one that exists is never touched."`
}

// Run writes the key. Overwriting would make every card number sealed with the old key unreadable.
func (k *keysNewCommand) Run(p process) error {
	if err := os.MkdirAll(filepath.Dir(k.File), keyDirMode); err != nil {
		return fmt.Errorf("make directory for key: %w", err)
	}
	file, err := os.OpenFile(k.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, keyFileMode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write key: %s exists, and a key is never overwritten: what it sealed could not be opened any more", k.File)
	}
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	_, err = file.WriteString(gateway.NewVaultKey())
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	fmt.Fprintf(p.stdout, "wrote %s; keep a copy where a loss of this machine does not reach\n", k.File)
	return nil
}
