package ledger

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestAccountIsMadeOnceAcrossDaemons(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const daemons, callers = 3, 4
	var mu sync.Mutex
	var wg sync.WaitGroup
	ids := map[int32]bool{}
	for range daemons {
		accounts := NewAccounts(b.pool)
		for range callers {
			wg.Go(func() {
				id, err := accounts.ID(b.ctx, "acme", "mastercard", Customer, currency(t, "USD"))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[id] = true
			})
		}
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("%d callers got the ids %v, want one", daemons*callers, ids)
	}
}

func TestAccountsDifferByEachPartOfTheirName(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	accounts := NewAccounts(b.pool)
	seen := map[int32]accountName{}
	for _, name := range []accountName{
		{"acme", "visa", Customer, "EUR"}, {"umbrella", "visa", Customer, "EUR"}, {"acme", "mastercard", Customer, "EUR"},
		{"acme", "visa", Settlement, "EUR"}, {"acme", "visa", Suspense, "EUR"}, {"acme", "visa", Customer, "USD"},
	} {
		id, err := accounts.ID(b.ctx, name.tenant, name.link, name.kind, currency(t, name.currency))
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := seen[id]; taken {
			t.Errorf("%v and %v are the same account", name, other)
		}
		seen[id] = name
		again, err := accounts.ID(b.ctx, name.tenant, name.link, name.kind, currency(t, name.currency))
		if err != nil || again != id {
			t.Errorf("%v is %d, then %d (%v)", name, id, again, err)
		}
		account, err := AccountByID(b.ctx, b.pool, id)
		want := Account{ID: id, Tenant: name.tenant, Link: name.link, Kind: name.kind, Currency: currency(t, name.currency)}
		if err != nil || account != want {
			t.Errorf("account %d reads %+v (%v), want %+v", id, account, err, want)
		}
	}
	if _, err := AccountByID(b.ctx, b.pool, 1<<30); !errors.Is(err, ErrNoAccount) {
		t.Errorf("an unknown account gives %v, want ErrNoAccount", err)
	}
}

func TestAccountNamesAreChecked(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	accounts := NewAccounts(b.pool)
	eur := currency(t, "EUR")
	for rule, name := range map[string]accountName{
		"tenant":   {"", "visa", Customer, "EUR"},
		"link":     {"acme", strings.Repeat("x", maxLinkBytes+1), Customer, "EUR"},
		"kind":     {"acme", "visa", "savings", "EUR"},
		"currency": {"acme", "visa", Customer, "XXX"},
	} {
		c := eur
		c.Alpha = name.currency
		if _, err := accounts.ID(b.ctx, name.tenant, name.link, name.kind, c); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%v gives %v, want an error about its %s", name, err, rule)
		}
	}
}

func TestAccountCacheIsBounded(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	accounts := NewAccounts(b.pool)
	for i := range int32(maxCachedAccounts) {
		accounts.ids[accountName{tenant: "t", link: uuid.NewString()}] = i
	}
	id, err := accounts.ID(b.ctx, "acme", "visa", Customer, currency(t, "EUR"))
	if err != nil || id != b.customer.ID {
		t.Fatalf("account is %d (%v), want %d", id, err, b.customer.ID)
	}
	if len(accounts.ids) != 1 {
		t.Errorf("a full cache holds %d ids after one more, want it emptied", len(accounts.ids))
	}
}

func TestListAccountsPages(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	accounts := NewAccounts(b.pool)
	if _, err := accounts.ID(b.ctx, "umbrella", "visa", Customer, currency(t, "EUR")); err != nil {
		t.Fatal(err)
	}
	want := []Account{b.suspense, b.settlement, b.customer}
	var got []Account
	cursor, pages := "", 0
	for {
		page, next, err := ListAccounts(b.ctx, b.pool, "acme", cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		got, pages = append(got, page...), pages+1
		if next == "" {
			break
		}
		cursor = next
	}
	if pages != 2 || len(got) != len(want) {
		t.Fatalf("%d accounts on %d pages, want %d on 2", len(got), pages, len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("account %d of the list is %+v, want %+v", i, got[i], want[i])
		}
	}
	all, next, err := ListAccounts(b.ctx, b.pool, "", "", 10)
	if err != nil || next != "" || len(all) != 4 {
		t.Errorf("all tenants: %d accounts, next %q (%v), want 4 and no next", len(all), next, err)
	}
	for _, cursor := range []string{"!", "eA", strings.Repeat("A", 200)} {
		if _, _, err := ListAccounts(b.ctx, b.pool, "acme", cursor, 2); !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %q gives %v, want ErrCursor", cursor, err)
		}
		if _, _, err := Entries(b.ctx, b.pool, b.customer.ID, cursor, 2); !errors.Is(err, ErrCursor) {
			t.Errorf("entries cursor %q gives %v, want ErrCursor", cursor, err)
		}
	}
}

func TestEntriesPageNewestFirst(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	// Five share a moment, so that pages split a tie; they are booked on either side of the customer.
	var keys []string
	for i := range 9 {
		at := noon.Add(time.Duration(max(0, i-4)) * time.Minute)
		p := b.posting(uuid.New(), Debit, 1, Posted, int64(i+1))
		if i%2 == 1 {
			p = back(p)
		}
		b.post(at, p)
		keys = append([]string{p.Key()}, keys...)
	}
	elsewhere := b.posting(uuid.New(), Debit, 1, Posted, 5)
	elsewhere.DebitAccount = b.suspense.ID
	b.post(noon, elsewhere)
	for _, limit := range []int{1, 2, 4, 9, MaxPage + 1} {
		var got []string
		cursor := ""
		for {
			page, next, err := Entries(b.ctx, b.pool, b.customer.ID, cursor, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				got = append(got, e.Key())
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(keys, " ") {
			t.Errorf("in pages of %d:\n%v, want\n%v", limit, got, keys)
		}
	}
}

func TestEntriesOfAnIntentInOrder(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	intent := uuid.New()
	b.post(noon, b.posting(intent, Hold, 1, Pending, 5))
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 5))
	b.post(noon.Add(time.Second), back(b.posting(intent, Release, 1, Pending, 5)))
	entries, err := EntriesOf(b.ctx, b.pool, intent)
	if err != nil || len(entries) != 2 || entries[0].Step != Hold || entries[1].Step != Release {
		t.Errorf("entries of the intent: %+v (%v), want its hold and its release", entries, err)
	}
}
