# Towline's project targets; `make help` lists them. Needs Go, make, git and bash.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The order of prerequisites is the order of work, also under make -j: go
# uses every core by itself.
.NOTPARALLEL:

BIN     := $(CURDIR)/bin
TOOLS   := $(BIN)/tools
PHASE   := tools/phase.sh
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X towline.dev/towline/pkg/version.Version=$(VERSION)
GOBUILD := go build -buildvcs=false

# All that is compiled here is compiled in one way, without the paths of the machine: what tests, binaries and vet are made of is compiled once for
# all of them, and what one clone has compiled another need not.
override GOFLAGS := $(strip -trimpath $(filter-out -trimpath,$(GOFLAGS)))
export GOFLAGS

# Hand-written Go: everything but gen/, bin/ and what git keeps to itself.
GO_FILES := find . \( -path ./gen -o -path ./bin -o -path ./.git \) -prune -o -name '*.go' -type f -print
SH_FILES := find . \( -path ./bin -o -path ./.git \) -prune -o \( -name '*.sh' -o -path './.ci/*' \) -type f -print

##@ General

.PHONY: help
help: ## Show this help
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

##@ Build

.PHONY: build
build: ## Build bin/towline-hub, bin/towline-agent and bin/towline
	@mkdir -p $(BIN)
	@$(PHASE) build $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./hub/cmd/towline-hub ./agent/cmd/towline-agent ./ctl/cmd/towline

# For tests alone.
.PHONY: build-race
build-race: ## Build the same with the race detector into bin/race (needs a C compiler)
	@mkdir -p $(BIN)/race
	@$(PHASE) 'build with the race detector' env CGO_ENABLED=1 go build -buildvcs=false -race -ldflags '$(LDFLAGS)' -o $(BIN)/race/ ./hub/cmd/towline-hub ./agent/cmd/towline-agent ./ctl/cmd/towline

.PHONY: kubelab
kubelab: ## Build the Kubernetes control planes the tests use; prints the binary's path
	@$(kubelab)

# Prints the path of the kubelab binary: $KUBELAB when it is set, else one built here.
kubelab = if [ -n "$${KUBELAB:-}" ]; then echo "$$KUBELAB"; else $(PHASE) kubelab test/kubelab/build.sh | tail -n 1; fi

.PHONY: generate
generate: tools-proto ## Regenerate gen/ from proto/ (offline)
	@tools/generate.sh

# What clients, agents and stores of before rely on: proto/ as it was when this was made. `make lint` holds proto/ to it.
BASELINE := proto/baseline.binpb

.PHONY: baseline
baseline: $(TOOLS)/buf ## Make proto/ as it is what later changes must not break (see docs/api.md)
	$(TOOLS)/buf build --exclude-source-info -o $(BASELINE)

.PHONY: tools
tools: tools-proto $(TOOLS)/staticcheck $(TOOLS)/grpcurl ## Build the pinned tools into bin/tools

.PHONY: tools-proto
tools-proto: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc

$(TOOLS)/buf: PACKAGE := github.com/bufbuild/buf/cmd/buf
$(TOOLS)/protoc-gen-go: PACKAGE := google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: PACKAGE := google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/staticcheck: PACKAGE := honnef.co/go/tools/cmd/staticcheck
$(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/staticcheck: tools/go.sum
	@mkdir -p $(TOOLS)
	cd tools && $(GOBUILD) -o $@ $(PACKAGE)
	@touch $@

# A module of its own: grpcurl's cloud and xDS dependencies stay out of the versions of the others.
$(TOOLS)/grpcurl: tools/grpcurl/go.sum
	@mkdir -p $(TOOLS)
	cd tools/grpcurl && $(GOBUILD) -o $@ github.com/fullstorydev/grpcurl/cmd/grpcurl
	@touch $@

.PHONY: clean
clean: ## Remove bin/, with the tools in it
	rm -rf $(BIN)

##@ Check

.PHONY: test
test: lint test-unit test-real bench-smoke ## Everything CI runs: lint, unit and simulation tests, the agent and whole systems on real API servers, bench smoke

.PHONY: lint
lint: lint-go lint-proto check-generate lint-shell ## Formatting, vet, staticcheck, buf, freshness of gen/, shell syntax

.PHONY: lint-go
lint-go: $(TOOLS)/staticcheck
	@$(PHASE) gofmt bash -euo pipefail -c 'bad=$$($(GO_FILES) | xargs -r gofmt -l); \
		[ -z "$$bad" ] || { echo "not gofmt-clean:"; echo "$$bad"; exit 1; }'
	@$(PHASE) 'go vet' go vet ./...
	@$(PHASE) staticcheck $(TOOLS)/staticcheck ./...

.PHONY: lint-proto
lint-proto: $(TOOLS)/buf
	@if [ -n "$$(find proto -name '*.proto' -print -quit 2>/dev/null)" ]; then \
		$(PHASE) 'buf lint' $(TOOLS)/buf lint; \
		$(PHASE) 'buf format' $(TOOLS)/buf format --diff --exit-code; \
		$(PHASE) 'buf breaking' $(TOOLS)/buf breaking --against $(BASELINE); \
	fi

.PHONY: check-generate
check-generate: tools-proto ## Fail when gen/ is not what proto/ says
	@$(PHASE) 'gen/ is fresh' tools/generate.sh --check

.PHONY: lint-shell
lint-shell:
	@$(PHASE) 'shell syntax' bash -euo pipefail -c '$(SH_FILES) | while read -r f; do bash -n "$$f"; done'

# The random runs of rollouts take minutes under the race detector, so it sees fewer of them. Their seed is fixed, so that what they find is
# found by whoever changed it; `make soak` draws new ones.
RANDOM_RUNS := ./pkg/rollout
RANDOM_SEED := -rapid.seed=1

# How many fleets make test lives; each takes half a second of a core. What is found once and not again is left to make sim, which is strict.
SIM_SEEDS := 200

.PHONY: test-unit
test-unit: ## Unit tests under the race detector, and the long random runs without it
	@unset TOWLINE_E2E; $(PHASE) 'unit tests under the race detector, random runs, simulated fleets' tools/together.sh 3 $(UNIT_TESTS) $(RANDOM_TESTS)

# The package that takes longest is named first, so that it begins first; most of its time it waits, while the others compute. What they are built of
# was vetted by make lint.
UNIT_TESTS := 'CGO_ENABLED=1 go test -race -vet=off -timeout 45m ./hub $$(go list ./... | grep -v "/$(RANDOM_RUNS:./%=%)$$")'

# Each uses one core, and waits for nothing, so that they get what the unit tests leave, which wait for deadlines. The longest first. Where nothing is
# cached the compiler takes most of the machine for a quarter of an hour: their limits leave room for that.
RANDOM_TESTS := 'nice go test -vet=off -timeout 45m $(RANDOM_RUNS) $(RANDOM_SEED)' \
	'SEED=1 SEEDS=$(SIM_SEEDS) TOWLINE_SIM_AGAIN=2 nice go test -vet=off -count=1 -timeout 45m ./test/sim -run TestSim$$' \
	'CGO_ENABLED=1 nice go test -race -vet=off -timeout 45m $(RANDOM_RUNS) $(RANDOM_SEED) -rapid.checks=200'

# Where the tests on real API servers find what they run on.
REAL = export TOWLINE_E2E=1 TOWLINE_BIN=$(BIN) TOWLINE_RACE_BIN=$(BIN)/race TOWLINE_SEED="$${TOWLINE_SEED:-31}"; \
	KUBELAB=$$($(kubelab)); export KUBELAB

# The packages of the agent that have tests on a real API server; without one those are skipped. They wait more than
# they compute, so that many run at a time.
LAB_TEST := go test -vet=off -count=1 -parallel 8 -timeout 40m
LAB_TESTS := ./agent ./agent/internal/state ./agent/internal/worker
# The same in two parts that take about as long: one alone would still go on when all others have ended.
LAB_FIRST := ^Test[A-N]
LAB_PARTS := '$(LAB_TEST) -skip "$(LAB_FIRST)" $(LAB_TESTS)' '$(LAB_TEST) -run "$(LAB_FIRST)" $(LAB_TESTS)'

# The longest first.
E2E_TEST := go test -vet=off -count=1 -timeout 30m
E2E_TESTS := '$(E2E_TEST) ./test/e2e -run TestFaults' '$(E2E_TEST) ./test/e2e -run TestObjects' \
	'$(E2E_TEST) ./test/e2e/recovery' '$(E2E_TEST) ./test/e2e/rollouts' '$(E2E_TEST) ./test/e2e/truth' '$(E2E_TEST) ./test/e2e/canaries'

# Three at a time: each waits most of the time, for leases to run out and for what must not happen; with more, on two cores, their API servers
# answer too late.
.PHONY: test-real
test-real: build build-race ## test-lab and test-e2e at the same time
	@$(REAL); $(PHASE) 'tests on real API servers' tools/together.sh 3 $(LAB_PARTS) $(E2E_TESTS)

.PHONY: test-e2e
test-e2e: build build-race ## End-to-end tests on real control planes; ARGS='-run X -v' narrows them
	@$(REAL); $(PHASE) 'e2e tests' $(if $(ARGS),$(E2E_TEST) -p 2 $(ARGS) ./test/e2e/... </dev/null,tools/together.sh 3 $(E2E_TESTS))

.PHONY: test-lab
test-lab: ## The agent's own tests on a real API server; ARGS='-run X -v' narrows them
	@$(REAL); $(PHASE) 'agent on a real API server' $(LAB_TEST) $(ARGS) $(LAB_TESTS) </dev/null

# The programs that packages are compared with; in make test it is their libraries, which are linked anyway.
$(TOOLS)/helm: PACKAGE := helm.sh/helm/v4/cmd/helm
$(TOOLS)/kustomize: PACKAGE := sigs.k8s.io/kustomize/kustomize/v5
$(TOOLS)/helm $(TOOLS)/kustomize: tools/packages/go.sum
	@mkdir -p $(TOOLS)
	cd tools/packages && $(GOBUILD) -o $@ $(PACKAGE)
	@touch $@

.PHONY: test-packages
test-packages: $(TOOLS)/helm $(TOOLS)/kustomize ## Compare packages with what `helm template` and `kustomize build` print
	@$(PHASE) 'packages against the programs' env TOWLINE_HELM=$(TOOLS)/helm TOWLINE_KUSTOMIZE=$(TOOLS)/kustomize \
		go test -count=1 $(ARGS) ./hub/internal/packager </dev/null

# What lives of a seed are the same with: a runtime of Go that draws from the seed. The first build of it compiles the standard library anew.
SIM = env SEED='$(SEED)' SEEDS='$(or $(SEEDS),$(if $(SEED),1,200))' $(BIN)/_sim/exact.test -test.timeout 0

.PHONY: sim
sim: sim-exact ## Live whole fleets in virtual time from SEEDS=n seeds (200), the first of which is SEED=n (1); SEED alone lives from that one, and says whether it is the same again
	@$(PHASE) 'simulated fleets' $(SIM) $(if $(SEEDS)$(if $(SEED),,1),-test.run 'TestSim$$',-test.v -test.run 'Test(Sim|Replay)$$') </dev/null

.PHONY: sim-replay
sim-replay: sim-exact ## Live each of SEEDS=n seeds (200) twice, and see that they are the same to the last effect
	@$(PHASE) 'lives lived twice' $(SIM) -test.run 'TestReplay$$' -test.v </dev/null

.PHONY: sim-exact
sim-exact:
	@mkdir -p $(BIN)/_sim && go run ./test/sim/overlay $(CURDIR) $(BIN)/_sim
	@$(PHASE) 'build with a runtime that draws from the seed' env CGO_ENABLED=0 go test -vet=off -overlay $(BIN)/_sim/exact.json -c -o $(BIN)/_sim/exact.test ./test/sim

.PHONY: sim-planted
sim-planted: ## See that the simulation finds the bugs that are planted for it
	@mkdir -p $(BIN)/_sim && go run ./test/sim/overlay $(CURDIR) $(BIN)/_sim
	@$(PHASE) 'build with planted bugs' go test -vet=off -overlay $(BIN)/_sim/overlay.json -c -o $(BIN)/_sim/sim.test ./test/sim
	@for bug in $$(go run ./test/sim/overlay list); do \
		$(PHASE) "$$bug" env TOWLINE_PLANTED="$$bug" $(BIN)/_sim/sim.test -test.v -test.run TestPlanted </dev/null || exit 1; done

FUZZ ?= 10m
# Go minimises each input that finds something new for up to a minute, and tries nothing else meanwhile.
.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZ (10m); PACKAGES='hub/internal/patch pkg/manifest' narrows them
	@for package in $(or $(PACKAGES),$$(grep -rl --include='*_test.go' '^func Fuzz' agent ctl hub pkg | xargs -n1 dirname | sort -u)); do \
		for target in $$(go test -list '^Fuzz' ./$$package | grep '^Fuzz'); do \
			$(PHASE) "$$package $$target" go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZ) -fuzzminimizetime 10x ./$$package </dev/null || exit 1; done; done

SOAK ?= 2h
# Not in make test: it is about what happens in minutes.
.PHONY: soak-hubs
soak-hubs: build-race ## Three hubs on three etcd members, killed and paused at random for SOAK (5m) under rollouts; TOWLINE_SEED=n
	@kubelab=$$($(kubelab)); $(PHASE) 'hubs and members come and go' env KUBELAB="$$kubelab" TOWLINE_BIN=$(BIN)/race TOWLINE_SOAK=$(SOAK_HUBS) \
		go test -count=1 -timeout 0 $(ARGS) -v ./test/e2e/hubs </dev/null

SOAK_HUBS = $(if $(filter file,$(origin SOAK)),5m,$(SOAK))

.PHONY: soak
soak: build-race test-lab soak-hubs ## Random operations on real clusters for SOAK (2h), with the race detector; then all e2e tests with it
	@kubelab=$$($(kubelab)); export TOWLINE_E2E=1 KUBELAB="$$kubelab" TOWLINE_BIN=$(BIN)/race; \
		$(PHASE) 'soak for $(SOAK)' env TOWLINE_SOAK=$(SOAK) go test -count=1 -timeout 0 $(ARGS) -v ./test/e2e/truth </dev/null; \
		$(PHASE) 'random histories for $(SOAK)' env TOWLINE_SOAK=$(SOAK) go test -count=1 -timeout 0 $(ARGS) -v ./test/e2e/histories </dev/null; \
		$(PHASE) 'an agent killed after each side effect' env TOWLINE_SOAK=$(SOAK) go test -race -count=1 -timeout 1h $(ARGS) ./agent/internal/worker -run KilledAnywhere </dev/null; \
		$(PHASE) 'random revisions, edits and watches of an agent' env TOWLINE_SOAK=$(SOAK) go test -race -count=1 -parallel 8 -timeout 1h $(ARGS) ./agent/internal/worker -run 'AtRandom|WatchesInTheAuditLog' </dev/null; \
		$(PHASE) 'a second API server that stands still' env TOWLINE_SOAK=$(SOAK) go test -race -count=1 -timeout 1h $(ARGS) ./agent/internal/worker -run StandsStill </dev/null; \
		$(PHASE) 'e2e tests with the race detector' go test -count=1 -p 1 -timeout 2h $(ARGS) ./test/e2e/... </dev/null
	@$(PHASE) 'random runs of rollouts' go test -count=1 -timeout 0 $(RANDOM_RUNS) -run Random -rapid.checks=200000
	@$(PHASE) 'random operations on a hub' env TOWLINE_RANDOM=20m TOWLINE_RESTARTS=1 go test -count=1 -timeout 0 -v ./hub -run RandomOperations
	@for damage in '' 1; do \
		$(PHASE) "random operations on a hub that is killed$${damage:+, with damaged records}" env TOWLINE_RANDOM=10m TOWLINE_KILLS=8 TOWLINE_DAMAGE=$$damage \
			go test -count=1 -timeout 0 -v ./hub -run RandomOperations </dev/null || exit 1; \
	done

.PHONY: bench
bench: build ## Run every benchmark in bench/
	@$(bench)

.PHONY: bench-smoke
bench-smoke: build ## Run every benchmark once, small and without thresholds
	@export SMOKE=1; $(bench)

bench = for d in bench/*/; do \
	[ -e "$${d}go.mod" ] || continue; \
	TOWLINE_BIN=$(BIN) $(PHASE) "$${SMOKE:+smoke of }$${d%/}" bash -c "cd $$d && exec go run ." </dev/null; \
	done

##@ Try

.PHONY: demo
demo: build ## A hub and three real clusters: put, Ready, drift corrected, update, delete; HA=1: three hubs, and a kill; KEEP=1 leaves them running
	@kubelab=$$($(kubelab)); KUBELAB="$$kubelab" TOWLINE_BIN=$(BIN) KEEP="$(KEEP)" HA="$(HA)" go run ./test/demo
