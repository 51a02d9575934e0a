package localpg

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// maxTailBytes of the server's log go into an error.
const maxTailBytes = 2000

// lastWords are what the server said since it was started at began: to its
// standard error at first, to its log once that is open.
func (s *Server) lastWords(began time.Time) string {
	words := make([]string, 0, 2)
	said, err := readTail(s.paths.startup)
	if err != nil {
		return err.Error()
	}
	words = append(words, said)
	logs, err := filepath.Glob(filepath.Join(s.paths.log, "*.log"))
	if err != nil {
		return err.Error()
	}
	for _, log := range logs {
		if info, err := os.Lstat(log); err != nil || !info.Mode().IsRegular() || info.ModTime().Before(began) {
			continue
		}
		if text, err := readTail(log); err == nil {
			words = append(words, text)
		}
	}
	return strings.Join(words, "\n")
}

// readTail reads the end of a file, which may be long, and follows no link: the
// log directory is the server's, and the reader may be root.
func readTail(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open server's words: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("look at server's words: %w", err)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-maxTailBytes), maxTailBytes))
	if err != nil {
		return "", fmt.Errorf("read server's words: %w", err)
	}
	return tail(text), nil
}

func tail(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) > maxTailBytes {
		text = text[len(text)-maxTailBytes:]
	}
	return string(text)
}
