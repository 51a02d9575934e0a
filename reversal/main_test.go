package reversal_test

import (
	"testing"

	"github.com/schemegate/schemegate/ledger/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
