package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/migrations"
)

func TestMain(m *testing.M) { Main(m) }

// A template can be copied only while nobody is in it, so many tests at once are
// where a stray connection shows.
func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	for range 6 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			db := NewDB(t)
			have, want, err := migrations.Current(t.Context(), db.Pool)
			if err != nil || have != want {
				t.Errorf("schema has version %d, want %d: %v", have, want, err)
			}
			// Fails when another test did the same in the same database.
			if _, err := connectOwner(t, db).Exec(t.Context(), `CREATE TABLE mine (n int)`); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPoolWorksUnderTheDaemonsRole(t *testing.T) {
	t.Parallel()
	db := NewDB(t)
	var user, session string
	if err := db.Pool.QueryRow(t.Context(), `SELECT current_user, session_user`).Scan(&user, &session); err != nil {
		t.Fatal(err)
	}
	if user != migrations.WriterRole || session == user {
		t.Errorf("pool works as %s, logged in as %s", user, session)
	}
}

func TestDatabaseIsDroppedWithTheTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("", func(t *testing.T) {
		db := NewEmptyDB(t)
		conn := connectOwner(t, db) // still open when the database goes
		if err := conn.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	var exists bool
	err := started.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, name).Scan(&exists)
	if err != nil || exists {
		t.Errorf("database %s exists: %v, %v", name, exists, err)
	}
}

func TestRemoveAbandoned(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	old := time.Now().Add(-2 * abandonedAfter)
	for _, name := range []string{dirPrefix + "old", dirPrefix + "young", "other"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if name != dirPrefix+"young" {
			if err := os.Chtimes(filepath.Join(root, name), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	removeAbandoned(root)
	left, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 2 || left[0].Name() != "other" || left[1].Name() != dirPrefix+"young" {
		t.Errorf("left are %v", left)
	}
}

func connectOwner(t *testing.T, db *DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
