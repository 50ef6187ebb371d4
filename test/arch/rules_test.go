// Package arch holds the shape of the code: which package may import which,
// what pure code may not do, and a few rules of writing. It parses the source
// and runs nothing. This file is the table of rules and their reasons, to be
// read and extended; tree_test.go reads the source, arch_test.go checks it.
package arch

// module is the import path of the repository's root.
const module = "towline.dev/towline"

// A tier is a layer of packages. A package imports from its own tier and from
// those below it. Paths are relative to the module and written as for the go
// command: "pkg/x/..." is pkg/x and everything under it, "hub" is only itself.
// Where several patterns match, the longest counts.
type tier struct {
	name     string
	why      string // why nothing below may import it
	packages []string
}

// tiers lists the layers, lowest first. A package under pkg, hub, agent or ctl
// must be in one of them; a package whose name ends in "test" is in the last.
var tiers = []tier{
	{
		name:     "vocabulary",
		packages: []string{"pkg/fleet/...", "pkg/version/..."},
	},
	{
		name: "pure",
		why:  "the vocabulary is what everything else is said in, so it can depend on nothing",
		packages: []string{
			"pkg/artifact/...", "pkg/manifest/...", "pkg/health/...", "pkg/assemble/...",
			"pkg/rollout/...", "pkg/follow/...", "pkg/catalog/...", "pkg/tracker/...", "pkg/plan/...", "pkg/celenv/...", "pkg/localpolicy/...", "hub/internal/signature/...",
		},
	},
	{
		// wire and rpc serve the edges, but the sessions and the store speak
		// protobuf and gRPC too, so they stand where all of these reach them.
		name: "ports and adapters",
		why:  "decisions are functions of values: they are tested in milliseconds because no store, clock, network or cluster can reach them",
		packages: []string{
			"pkg/dirty/...", "pkg/backoff/...", "pkg/guard/...", "pkg/heap/...", "pkg/telemetry/...", "pkg/tracing/...", "pkg/render/...", "pkg/resource/...", "pkg/wire/...", "pkg/rpc/...",
			"hub/internal/store/...", "hub/internal/egress/...", "hub/internal/secrets/...", "hub/internal/source/...", "hub/internal/packager/...", "hub/internal/patch/...", "hub/internal/registry/...",
			"hub/internal/bundle/...", "hub/internal/rollouts/...", "hub/internal/record/...", "hub/internal/counts/...", "hub/internal/meter/...", "hub/internal/audit/...",
			"agent/internal/kube/...", "agent/internal/meter/...", "agent/internal/state/...", "agent/internal/identity/...", "agent/internal/fence/...", "agent/internal/desired/...", "agent/internal/apply/...", "agent/internal/watch/...", "agent/internal/report/...", "agent/internal/reach/...", "agent/internal/vault/...",
		},
	},
	{
		name: "drivers",
		why:  "an adapter that knew its driver could not be replaced by another backend or by a fake",
		packages: []string{
			"hub/internal/control/...", "hub/internal/session/...", "hub/internal/gate/...", "hub/internal/peers/...",
			"agent/internal/session/...", "agent/internal/worker/...",
		},
	},
	{
		name:     "edges",
		why:      "what the system does must not depend on how it is asked: every edge (gRPC, HTTP, the command line) gets the same behaviour",
		packages: []string{"hub/internal/api/...", "hub/internal/hook/...", "pkg/client/...", "ctl/..."},
	},
	{
		name:     "composition",
		why:      "parts are handed what they need; one that reached for the whole would bring up everything in its tests",
		packages: []string{"hub", "hub/cmd/...", "agent", "agent/cmd/...", "ctl/cmd/..."},
	},
	{
		name:     "tests",
		why:      "test code must not end up in a binary",
		packages: []string{"pkg/testkit/...", "test/...", "bench/..."},
	},
}

// An importRule says what a set of packages may import. Patterns are as in
// tier; those that start with "./" are relative to the module, the others are
// import paths.
type importRule struct {
	name   string
	why    string
	of     []string // the packages it holds for ...
	exempt []string // ... except these
	deny   []string // what they must not import ...
	unless []string // ... except these
	only   []string // when set: of this module they import nothing but these
	tests  bool     // whether it holds for _test.go files, too
}

var importRules = []importRule{
	{
		name:  "pkg stands alone",
		why:   "hub, agent, ctl and third parties share pkg; if it needed one of them, each of them would carry it",
		of:    []string{"pkg/..."},
		deny:  []string{"./hub/...", "./agent/...", "./ctl/..."},
		tests: true,
	},
	{
		name:  "the hub does not know the agent",
		why:   "they are released and upgraded apart and meet in the protocol only; shared code belongs in pkg",
		of:    []string{"hub/..."},
		deny:  []string{"./agent/...", "./ctl/..."},
		tests: true,
	},
	{
		name:  "the agent does not know the hub",
		why:   "it runs in other people's clusters: small, and without the hub's stores and keys; shared code belongs in pkg",
		of:    []string{"agent/..."},
		deny:  []string{"./hub/...", "./ctl/..."},
		tests: true,
	},
	{
		name: "the agent links few kinds",
		why: "these register every kind of every version of the Kubernetes API: half as much code again, which an agent with " +
			"nothing to do keeps in memory beside all that it needs; agent/internal/kube has typed clients",
		of:   []string{"agent/...", "pkg/..."},
		deny: []string{"k8s.io/client-go/kubernetes/...", "k8s.io/client-go/discovery/...", "k8s.io/client-go/restmapper/...", "k8s.io/client-go/gentype/..."},
	},
	{
		name:  "sources are fetched by the hub alone",
		why:   "the agent and the towline command would carry every protocol and its faults into each cluster, and onto each desk",
		of:    []string{"agent/...", "ctl/...", "pkg/..."},
		deny:  []string{"github.com/go-git/...", "oras.land/..."},
		tests: true,
	},
	{
		name:  "ctl uses pkg and gen only",
		why:   "whatever the towline command can do, a third party can do with pkg/client and the public API",
		of:    []string{"ctl/..."},
		only:  []string{"pkg/...", "gen/...", "ctl/...", "deploy"}, // deploy is the manifests that join prints
		tests: true,
	},
	{
		name:  "whole-system tests stay outside",
		why:   "they prove what a user gets, through hub.New, agent.New, the public API and the binaries; one that looks inside proves something else and breaks with every refactoring",
		of:    []string{"test/...", "bench/..."},
		only:  []string{"hub", "agent", "pkg/...", "gen/...", "test/...", "bench/..."},
		tests: true,
	},
	{
		name: "pure packages compute",
		why:  "the same input gives the same decision, in a test, a simulation, a replay and in production; what can wait, fail, log or speak a protocol is given to them as a value",
		of:   purePackages,
		deny: []string{
			"context", "net/...", "os/...", "log/...", "syscall/...",
			"google.golang.org/grpc/...", "./gen/...", "k8s.io/client-go/...",
		},
		unless: []string{"net/url", "net/netip"}, // these only parse
	},
	{
		name: "backends of the store know bytes",
		why:  "a backend is replaced, and faults are put before it in tests, because it cannot depend on what is above it: keys, records, the read model",
		of:   []string{"hub/internal/store/backend/...", "hub/internal/store/etcd/...", "hub/internal/store/memory/..."},
		only: []string{"hub/internal/store/backend", "pkg/fleet", "pkg/backoff", "pkg/dirty"},
	},
	{
		name: "blobs know no records",
		why:  "what refers to a blob is told to a collection by who knows the records; blobs that knew them would be loaded, locked and broken together with them",
		of:   []string{"hub/internal/store/blobs/..."},
		only: []string{"hub/internal/store/backend", "hub/internal/store/envelope", "gen/towline/store/v1", "pkg/fleet", "pkg/guard"},
	},
	{
		name: "envelopes and feeds know no keys",
		why:  "records and blobs share the format, and records and what is shown of them the log; they must stay below all of these",
		of:   []string{"hub/internal/store/envelope/...", "hub/internal/store/feed/..."},
		only: []string{"gen/towline/store/v1", "pkg/fleet"},
	},
	{
		name: "the engine runs on any backend",
		why:  "what holds for the memory backend of the tests holds for etcd only if the engine cannot tell them apart",
		of:   []string{"hub/internal/store/engine/..."},
		deny: []string{"./hub/internal/store/etcd/...", "./hub/internal/store/memory/..."},
	},
	{
		name: "the store's port is only the port",
		why:  "whoever reads and writes records needs their keys and types, not how they are kept; the composition root alone picks engine and backend",
		of:   []string{"hub/internal/store"},
		only: []string{"gen/towline/...", "hub/internal/store/feed", "pkg/fleet"},
	},
	{
		name:   "who uses the store uses its port",
		why:    "a driver that holds the engine or a backend can go around the checks of the port; the composition root opens them",
		of:     []string{"hub/internal/..."},
		deny:   []string{"./hub/internal/store/engine/...", "./hub/internal/store/backend/...", "./hub/internal/store/etcd/...", "./hub/internal/store/memory/...", "./hub/internal/store/blobs/...", "./hub/internal/store/envelope/..."},
		exempt: []string{"hub/internal/store/..."},
	},
	{
		name:   "kustomize and Helm are in one place",
		why:    "they are most of the hub's code, know a hundred ways to reach files and networks, and keep things from one build to the next: only the process that builds runs them; agents and the command line are not to carry them",
		of:     []string{"pkg/...", "hub/...", "agent/...", "ctl/..."},
		exempt: []string{"hub/internal/packager/..."},
		deny:   []string{"sigs.k8s.io/kustomize/...", "helm.sh/helm/..."},
	},
	{
		name:  "only the composition knows the packager",
		why:   "it runs in a process of its own, without the hub's files and keys; whoever called it would run it in the hub's",
		of:    []string{"hub/internal/..."},
		deny:  []string{"./hub/internal/packager/..."},
		tests: true,
	},
	{
		name: "the packager knows nothing of the hub",
		why:  "what it builds is written by anybody: there must be nothing in its process that is worth having",
		of:   []string{"hub/internal/packager/..."},
		only: []string{"pkg/fleet", "pkg/render", "pkg/render/child"},
	},
	{
		name:   "render reads no network",
		why:    "rendering is repeatable: the source has fetched every file before, and its digest names what is rendered",
		of:     []string{"pkg/render/..."},
		deny:   []string{"net/...", "google.golang.org/grpc/...", "k8s.io/client-go/..."},
		unless: []string{"net/url", "net/netip"},
	},
}

// purePackages take the time as a value, start no goroutine and import nothing
// that waits or talks.
var purePackages = append(append([]string(nil), tiers[0].packages...), tiers[1].packages...)

// clockNames are what a pure package must not use of package time, in a call
// or as a value.
var clockNames = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

const (
	whyNoClock     = "a pure function takes `now` as a value, so that a test can say what time it is and a replay decides the same"
	whyNoGoroutine = "a pure function is done when it returns; concurrency belongs to the driver that calls it"

	maxFileLines = 600
	whyFileLines = "a file is read in one sitting; a longer one holds more than one idea and wants to be split by them"

	maxMainLines = 40
	whyMainLines = "main parses nothing and decides nothing: what it would do belongs where a test can call it"

	minDocLength = 60
	whyDoc       = "one comment per package says what it owns and what it must not know; with two, neither is the one that is kept true"

	whyNoSleep = "a sleep is too short on a busy machine and too long on every other: wait for an event, or use virtual time (testing/synctest) and advance it through a helper of pkg/testkit"

	whyLogs = "people and programs look for lines of the log by message and key: both are the same each time, and what differs is a value"

	whyNoMarks = "what is left to do belongs in an issue, where it is found, or is done now"
)
