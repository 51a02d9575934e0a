package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxSecretBytes bounds a secret's content: a key, a password, a token.
const maxSecretBytes = 64 << 10

// Secret says where a secret lies: in a file, or in a variable of the environment. It never holds the secret itself.
type Secret struct {
	File string `yaml:"file"` // path of a file that others cannot read
	Env  string `yaml:"env"`  // name of an environment variable
}

// IsZero tells whether neither place is named.
func (s Secret) IsZero() bool { return s == Secret{} }

// Validate adds the faults that can be seen without reading the secret.
func (s Secret) Validate(path string, f *Faults) {
	if err := s.check(); err != nil {
		f.Add(path, err.Error(), nil)
	}
}

func (s Secret) check() error {
	switch {
	case s.IsZero():
		return errors.New("a secret needs its place, as file or as env")
	case s.File != "" && s.Env != "":
		return errors.New("a secret has one place, as file or as env, not both")
	}
	return nil
}

// Read gives the secret's bytes, without one line end at the end. A file must be an ordinary one that not everybody on the
// machine can read or write. Errors name the place and the rule, never the content.
func (s Secret) Read() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Env != "" {
		content, set := os.LookupEnv(s.Env)
		if !set {
			return nil, fmt.Errorf("read secret: environment variable %s is not set", s.Env)
		}
		return secretContent([]byte(content), "environment variable "+s.Env)
	}
	content, err := readSecretFile(s.File)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	return secretContent(content, "file "+s.File)
}

// secretContent strips one line end, as editors and echo leave it, and refuses what is then empty or too long.
func secretContent(content []byte, place string) ([]byte, error) {
	if len(content) > maxSecretBytes {
		return nil, fmt.Errorf("read secret: %s is longer than %d bytes", place, maxSecretBytes)
	}
	content = bytes.TrimSuffix(bytes.TrimSuffix(content, []byte("\n")), []byte("\r"))
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, fmt.Errorf("read secret: %s is empty", place)
	}
	return content, nil
}

func readSecretFile(name string) ([]byte, error) {
	// Looked at before it is opened: opening a pipe would wait for its writer for ever.
	if err := checkSecretFile(os.Stat(name)); err != nil {
		return nil, fmt.Errorf("file %s: %w", name, err)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// And looked at once more through the open file, which nobody can exchange behind our back.
	if err := checkSecretFile(file.Stat()); err != nil {
		return nil, fmt.Errorf("file %s: %w", name, err)
	}
	return io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
}

func checkSecretFile(info os.FileInfo, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("does not exist")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not an ordinary file")
	case info.Mode().Perm()&0o006 != 0:
		return fmt.Errorf("everybody on this machine can read or write it (mode %#o): chmod o= it", info.Mode().Perm())
	}
	return nil
}
