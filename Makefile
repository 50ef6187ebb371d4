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
GOBUILD := go build -trimpath -buildvcs=false

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

.PHONY: kubelab
kubelab: ## Build the Kubernetes control planes the tests use; prints the binary's path
	@$(kubelab)

# Prints the path of the kubelab binary: $KUBELAB when it is set, else one built here.
kubelab = if [ -n "$${KUBELAB:-}" ]; then echo "$$KUBELAB"; else $(PHASE) kubelab test/kubelab/build.sh | tail -n 1; fi

.PHONY: generate
generate: tools-proto ## Regenerate gen/ from proto/ (offline)
	@tools/generate.sh

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
test: lint test-unit test-e2e bench-smoke ## Everything CI runs: lint, unit and simulation tests, e2e, bench smoke

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
	fi

.PHONY: check-generate
check-generate: tools-proto ## Fail when gen/ is not what proto/ says
	@$(PHASE) 'gen/ is fresh' tools/generate.sh --check

.PHONY: lint-shell
lint-shell:
	@$(PHASE) 'shell syntax' bash -euo pipefail -c '$(SH_FILES) | while read -r f; do bash -n "$$f"; done'

.PHONY: test-unit
test-unit: ## Unit and simulation tests (go test ./...)
	@$(PHASE) 'unit and simulation tests' env -u TOWLINE_E2E go test -timeout 10m ./...

.PHONY: test-e2e
test-e2e: build ## End-to-end tests on real control planes; ARGS='-run X -v' narrows them
	@if [ -d test/e2e ]; then \
		kubelab=$$($(kubelab)); \
		$(PHASE) 'e2e tests' env TOWLINE_E2E=1 KUBELAB="$$kubelab" TOWLINE_BIN=$(BIN) \
			go test -count=1 -p 1 -timeout 30m $(ARGS) ./test/e2e/... </dev/null; \
	fi

SOAK ?= 30m
.PHONY: soak
soak: ## Simulate with ever new seeds for SOAK (30m); TOWLINE_SOAK tells the tests
	@$(PHASE) 'soak for $(SOAK)' env TOWLINE_SOAK=$(SOAK) go test -count=1 -timeout 0 $(ARGS) ./test/sim/...

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
demo: build ## A hub and three real clusters: put, Ready, drift corrected, update, delete; KEEP=1 leaves them running
	@kubelab=$$($(kubelab)); KUBELAB="$$kubelab" TOWLINE_BIN=$(BIN) KEEP="$(KEEP)" go run ./test/demo
