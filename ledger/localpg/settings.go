package localpg

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// DefaultMaxConnections leaves room for a daemon's pool and some tools.
	DefaultMaxConnections = 100

	// DefaultMaxWALMiB keeps checkpoints rare under full load.
	DefaultMaxWALMiB = 4096

	minWALMiB = 80 // less is less than PostgreSQL keeps anyway
	maxWALMiB = 1024 * 1024

	minConnections = 20
	maxConnections = 1000

	minSharedBuffersMiB = 16
	maxSharedBuffersMiB = 64 * 1024
	// The bounds of what is chosen from the memory: beyond 2 GiB the hot rows
	// of this program are cached anyway.
	autoMinSharedBuffersMiB = 64
	autoMaxSharedBuffersMiB = 2048
	// sharedBuffersShare: one part in so many of the memory.
	sharedBuffersShare = 4
)

// setting is one configuration parameter of PostgreSQL.
type setting struct{ name, value string }

// guarantees are the settings that hold what the package promises, the same on
// every machine.
var guarantees = []setting{
	// What was committed survives the loss of power, and damage is told, never
	// written over.
	{"fsync", "on"},
	{"full_page_writes", "on"},
	{"synchronous_commit", "on"},
	{"data_sync_retry", "off"},
	{"zero_damaged_pages", "off"},
	{"ignore_checksum_failure", "off"},

	// The socket is the only way in.
	{"listen_addresses", ""},
	{"unix_socket_permissions", "0700"},

	// The log tells what happened to the server and never what was in a
	// statement: no text, no parameters, no DETAIL with a row's values.
	{"log_statement", "none"},
	{"log_duration", "off"},
	{"log_min_duration_statement", "-1"},
	{"log_min_error_statement", "panic"},
	{"log_parameter_max_length", "0"},
	{"log_parameter_max_length_on_error", "0"},
	{"log_error_verbosity", "terse"},
}

// settings are given on the command line, which wins over every file and over
// ALTER SYSTEM: what is promised about durability, reach and logs cannot be
// undone by accident.
func (s *Server) settings() []setting {
	connections := cmp.Or(s.cfg.MaxConnections, DefaultMaxConnections)
	walMiB := cmp.Or(s.cfg.MaxWALMiB, DefaultMaxWALMiB)
	buffersMiB := s.cfg.SharedBuffersMiB
	if buffersMiB == 0 {
		buffersMiB = autoSharedBuffersMiB(memoryBytes())
	}
	return append(slices.Clone(guarantees), []setting{
		{"port", fmt.Sprint(port)},
		{"unix_socket_directories", `"` + strings.ReplaceAll(s.socketDir, `"`, `""`) + `"`},
		{"hba_file", s.paths.hba},
		{"ssl", "off"},

		{"logging_collector", "on"},
		{"log_directory", s.paths.log},
		{"log_filename", "postgresql-%a.log"}, // seven files, each begun anew after a week
		{"log_truncate_on_rotation", "on"},
		{"log_rotation_age", "1d"},
		{"log_rotation_size", "0"},
		{"log_file_mode", "0600"},
		{"log_line_prefix", "%m [%p] %q%u@%d "},

		{"shared_buffers", fmt.Sprintf("%dMB", buffersMiB)},
		{"max_connections", fmt.Sprint(connections)},
		// Full pages follow every checkpoint and double the WAL of a step, so
		// checkpoints are rare, spread out and compressed.
		{"max_wal_size", fmt.Sprintf("%dMB", walMiB)},
		{"checkpoint_timeout", "15min"},
		{"checkpoint_completion_target", "0.9"},
		{"wal_compression", "on"},
		// Short statements lose more to compilation than they gain.
		{"jit", "off"},
		{"random_page_cost", "1.1"},
		{"timezone", "UTC"},
		{"log_timezone", "UTC"},
		{"cluster_name", "schemegate"},
	}...)
}

func autoSharedBuffersMiB(memory uint64) int {
	share := memory / sharedBuffersShare >> 20
	return int(min(max(share, autoMinSharedBuffersMiB), autoMaxSharedBuffersMiB))
}
