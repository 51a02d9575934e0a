# The commands of this project. From a clean clone on Debian or Ubuntu with Go
# installed, `make demo` and `make test` need nothing else.

GO        ?= go
BIN       := bin/schemegate
BENCHTIME ?= 1s
FUZZTIME  ?= 20s

# The race detector needs a C compiler; without one the tests run without it.
CC_FOUND := $(shell command -v "$$($(GO) env CC)" 2>/dev/null)
RACE     := $(if $(CC_FOUND),-race,)

.PHONY: help build setup demo run test check bench fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

build: ## build bin/schemegate
	@$(GO) build -o $(BIN) ./cmd/schemegate

setup: ## install PostgreSQL's server binaries when there are none
	@scripts/setup-postgres

demo: setup build ## tell the whole story with real requests, checked
	@$(BIN) demo

run: setup build ## the same, and leave everything up for trying by hand
	@$(BIN) demo --stay

test: setup ## all tests, with the race detector
	@test -n "$(RACE)" || echo "no C compiler found: testing without the race detector"
	@$(GO) test $(RACE) -timeout 10m ./...

check: ## format, vet, staticcheck, go.mod and the project's own rules
	@unformatted=$$(gofmt -l .) && \
		test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; exit 1; }
	@$(GO) vet ./...
	@$(GO) tool staticcheck ./...
	@$(GO) mod tidy -diff
	@$(GO) test -count=1 -run '^TestTidy' .

bench: setup ## benchmarks, one package after the other
	@$(GO) test -p 1 -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 30m ./...

fuzz: ## every fuzz target for FUZZTIME
	@GO="$(GO)" FUZZTIME="$(FUZZTIME)" scripts/fuzz

clean: ## remove what was built
	@rm -rf bin
