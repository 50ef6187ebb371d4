package rollout_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

var epoch = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC) // a Monday

// world is a hub and clusters as far as rollouts see them.
type world struct {
	t        tester
	now      time.Time
	strategy rollout.Strategy
	clusters map[string]*cluster
	gen      uint64
	plan     *rollout.Plan
	state    rollout.State
	last     rollout.Decision
	before   []rollout.Hold // of the decision before that
	clock    rollout.Clock
	ran      time.Duration // of the process, whatever the clock says
	module   rollout.Module
	number   int64
	past     []rollout.Past // the rollouts before, the newest first
	verbs    []rollout.Verb
	results  []rollout.GateResult
	confirm  []fleet.Digest
	out      strings.Builder
	quiet    bool
	blind    bool     // the placements of older revisions are not known
	stands   bool     // the hub's store was restored, and that is not settled
	matched  []string // overrides that matched nobody when the rollout was planned
	unplaced bool     // nor is that of the revision itself
	awaits   map[int64][]rollout.AwaitedSet
}

type cluster struct {
	fleet.Cluster
	unselected  bool // by the revision that is rolled out
	outside     bool // of the placement of the revision that a rollback goes to
	only, maybe bool // no other module is there; or none, unless one comes whose source is being fetched
	o           rollout.Observed
}

// tester is what testing.T and rapid.T have in common.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

func newWorld(t tester) *world {
	return &world{t: t, now: epoch, clusters: map[string]*cluster{}}
}

func (w *world) flush() string {
	s := w.out.String()
	w.out.Reset()
	return s
}

func (w *world) printf(format string, args ...any) { fmt.Fprintf(&w.out, format+"\n", args...) }

func (w *world) command(line string) {
	if line == "" || strings.HasPrefix(line, "#") {
		return
	}
	words, kv := args(line)
	name, words := words[0], words[1:]
	switch name {
	case "fleet": // fleet c1..c3 [at=r1] [label=value…]: connected clusters, ready with what they have
		w.addFleet(words, kv)
	case "strategy": // strategy field=value…
		w.setStrategy(kv)
	case "stage": // stage NAME [sel=k:v] field=value…
		w.addStage(words[0], kv)
	case "gate": // gate STAGE before|after KIND field=value…
		w.addGate(words, kv)
	case "start": // start r2 [from=r1] [by=ana] [source=why it gives no revision]
		w.start(words[0], kv)
	case "wait": // wait 5m: lets time pass, deciding when the rollout wants to
		w.wait(words[0])
	case "step": // step 1h: the clock is put forward
		w.now = w.now.Add(w.duration(words[0]))
		w.decide()
	case "at": // at 2006-01-02T15:04:05Z: time passes until then, or the clock is put back
		at, err := time.Parse(time.RFC3339, words[0])
		w.must(err)
		w.pass(at.UTC())
		if w.plan != nil {
			w.decide()
		}
	case "decide":
		w.decide()
	case "status":
		w.status()
	case "explain":
		w.explain(rollout.Explain(w.input()), 0)
	case "clusters":
		w.list()
	case "validate":
		w.printf("%v", w.strategy.Validate())
	case "check": // check STAGE before|after GATE OUTCOME [value=…] [m=…]
		w.check(words, kv)
	case "confirm": // confirm [late]: what is asked now, or what was asked when the rollout was looked at for the last time before
		holds := w.last.Holds
		if len(words) > 0 {
			holds = w.before
		}
		for _, h := range holds {
			w.confirm = append(w.confirm, h.Digest)
		}
		w.decide()
	case "revisions": // revisions r1 r2: those that there are
		w.module.Revisions = []int64{}
		for _, r := range words {
			w.module.Revisions = append(w.module.Revisions, atoi(r))
		}
	case "awaits": // awaits r2 nothing | MODULE [sel=role=control] [total=N] [in=c1,c2] [code=C]: what comes before r2 and is not ready
		w.await(words, kv)
		if w.plan != nil {
			w.decide()
		}
	case "successor":
		w.module.Successor = atoi(words[0])
		w.decide()
	case "matched": // matched OVERRIDE…: they match a selected cluster by now
		w.matched = words
		w.decide()
	case "blind", "unplaced", "stands": // blind on|off: the placements of older revisions are not known; unplaced: that of the revision is not
		*map[string]*bool{"blind": &w.blind, "unplaced": &w.unplaced, "stands": &w.stands}[name] = words[0] == "on"
		if w.plan != nil {
			w.decide()
		}
	case "delete-module":
		w.module.Deleted = true
		w.decide()
	case "put":
		next := rollout.StartNow
		if w.plan != nil && !w.state.State.Ended() {
			next = rollout.Succeed(w.plan.Strategy.OnSupersede)
		}
		w.printf("%s", next)
	default:
		if w.verb(name, words, kv) {
			return
		}
		for _, c := range expand(words[0]) {
			w.change(name, c, words[1:], kv)
		}
		if w.plan != nil {
			w.decide()
		}
	}
}

func (w *world) await(words []string, kv map[string]string) {
	awaits := map[int64][]rollout.AwaitedSet{}
	for r, sets := range w.awaits {
		awaits[r] = sets
	}
	delete(awaits, atoi(words[0]))
	w.awaits = awaits
	if words[1] == "nothing" {
		return
	}
	set := rollout.AwaitedSet{Module: words[1], Selector: kv["sel"], Code: kv["code"], Total: int(atoi(kv["total"]))}
	if kv["in"] != "" {
		for _, c := range expand(kv["in"]) {
			set.Clusters = append(set.Clusters, rollout.AwaitedCluster{Cluster: c, Reason: rollout.ReasonNotReady})
		}
		set.Waiting = len(set.Clusters)
	}
	awaits[atoi(words[0])] = []rollout.AwaitedSet{set}
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(s, "r"), 10, 64)
	return n
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) addFleet(words []string, kv map[string]string) {
	at := atoi(kv["at"])
	only, maybe := kv["only"] == "yes", kv["only"] == "maybe"
	delete(kv, "at")
	delete(kv, "only")
	for _, c := range expand(words[0]) {
		w.gen++
		cl := &cluster{Cluster: fleet.Cluster{Name: fleet.ClusterName(c), Labels: kv}, only: only, maybe: maybe}
		cl.o.Connected = true
		if at != 0 {
			cl.o.Revision, cl.o.Generation, cl.o.Ready, cl.o.Well = at, w.gen, true, true
		}
		w.clusters[c] = cl
	}
	if w.plan != nil {
		w.decide()
	}
}

func (w *world) amount(s string) rollout.Amount {
	a, err := rollout.ParseAmount(s)
	w.must(err)
	return a
}

func (w *world) duration(s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	w.must(err)
	return d
}

func (w *world) setStrategy(kv map[string]string) {
	s := &w.strategy
	s.MaxFailures, s.OnFailure = w.amount(kv["maxFailures"]), kv["onFailure"]
	s.MinReadyTime, s.ProgressDeadline = w.duration(kv["minReadyTime"]), w.duration(kv["progressDeadline"])
	s.Offline, s.LateJoiners, s.Unmatched, s.OnSupersede = kv["offline"], kv["lateJoiners"], kv["unmatched"], kv["onSupersede"]
	s.Rollback = rollout.Rollback{Scope: kv["scope"], MaxConcurrency: w.amount(kv["back"]), Gates: kv["gates"]}
}

func (w *world) addStage(name string, kv map[string]string) {
	st := rollout.Stage{Name: name, MaxConcurrency: w.amount(kv["max"]), MaxFailures: w.amount(kv["maxFailures"]),
		SortBy: kv["sortBy"], Soak: w.duration(kv["soak"]), AllowEmpty: kv["allowEmpty"] != ""}
	if k, v, ok := strings.Cut(kv["sel"], ":"); ok {
		st.Selector = &fleet.Selector{MatchLabels: map[string]string{k: v}}
	}
	w.strategy.Stages = append(w.strategy.Stages, st)
}

func (w *world) addGate(words []string, kv map[string]string) {
	i := slices.IndexFunc(w.strategy.Stages, func(s rollout.Stage) bool { return s.Name == words[0] })
	g := rollout.Gate{Name: kv["name"]}
	num := func(k string) int { return int(atoi(kv[k])) }
	switch words[2] {
	case "approval":
		g.Approval = &rollout.Approval{Approvers: num("n"), Expires: w.duration(kv["expires"])}
		if kv["users"] != "" {
			g.Approval.Users = strings.Split(kv["users"], ",")
		}
	case "window":
		g.Window = &rollout.WindowGate{}
		for k, list := range map[string]*[]rollout.Window{"allow": &g.Window.Allow, "deny": &g.Window.Deny} {
			if kv[k] != "" {
				*list = []rollout.Window{{Cron: kv[k], Duration: w.duration(kv[k+"For"]), TimeZone: kv["zone"]}}
			}
		}
	case "webhook":
		g.Webhook = &rollout.Webhook{URL: "https://gate.example/check", Interval: w.duration(kv["interval"])}
	case "metric":
		g.Metric = &rollout.Metric{Address: "https://prometheus.example", Query: "up", SuccessCondition: "result[0] > 0.9",
			Count: num("count"), Interval: w.duration(kv["interval"]), FailureLimit: num("failureLimit"), InconclusiveLimit: num("inconclusiveLimit")}
	case "expression":
		g.Expression = &rollout.Expression{Expression: "clusters.all(c, c.ready)"}
	}
	st := &w.strategy.Stages[i]
	if words[1] == "before" {
		st.Before = append(st.Before, g)
	} else {
		st.After = append(st.After, g)
	}
}

func (w *world) sorted() []*cluster {
	var out []*cluster
	for _, c := range w.clusters {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *cluster) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out
}

func (w *world) start(rev string, kv map[string]string) {
	w.number++
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: w.number},
		Revision: atoi(rev), From: atoi(kv["from"]), StartedBy: kv["by"], Pins: w.state.Pins, AskedSince: w.state.HoldSince}
	if w.plan != nil {
		w.past = append([]rollout.Past{{Plan: w.plan, State: w.state}}, w.past...)
	}
	if n := slices.IndexFunc(w.past, func(x rollout.Past) bool { return x.Plan.Revision == in.Revision }); n >= 0 {
		in.MayHave = rollout.MayStillHave(w.past[:n+1])
	}
	if kv["emptyOverride"] != "" {
		in.EmptyOverrides = []string{kv["emptyOverride"]}
	}
	for _, c := range w.sorted() {
		if !c.o.Gone {
			in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: c.Cluster, Selected: !c.unselected, Revision: c.o.Revision, Last: c.only})
		}
	}
	var err error
	w.plan, w.state, err = rollout.NewPlan(w.strategy, in)
	w.must(err)
	w.module, w.verbs, w.results, w.confirm = rollout.Module{}, nil, nil, nil
	if kv["source"] != "" {
		w.module.SourceFailed = &rollout.SourceFailed{Reason: "SourceFailed", Message: kv["source"]}
	}
	w.decide()
}

func (w *world) input() rollout.Input {
	in := rollout.Input{Now: w.now, Clock: w.clock.At(w.now, w.ran), Plan: w.plan, State: w.state, Verbs: w.verbs, Results: w.results, Module: w.module, Confirmed: w.confirm, Awaits: w.awaits}
	in.Unplaced, in.Stands, in.Matched = w.unplaced, w.stands, w.matched
	if !w.blind {
		in.Older = in.State.MayNeed(in.Plan, in.Verbs)
	}
	known := map[string]bool{}
	for i := range w.state.Len(w.plan) {
		name := string(w.state.Member(w.plan, i).Cluster)
		known[name] = true
		in.Observed = append(in.Observed, w.observe(w.clusters[name]))
	}
	for _, c := range w.sorted() {
		if o := w.observe(c); !known[string(c.Name)] && !(o.Unselected && o.UnselectedOlder) && !o.Gone {
			in.Newcomers = append(in.Newcomers, rollout.Newcomer{Cluster: c.Cluster, Observed: o})
		}
	}
	return in
}

// observe is what the hub knows of a cluster.
func (w *world) observe(c *cluster) rollout.Observed {
	o := c.o
	o.Unselected, o.UnselectedOlder = c.unselected, c.outside
	leaves := (c.unselected || c.outside) && o.Revision != 0
	o.Last, o.MayBeLast = leaves && c.only, leaves && c.maybe
	if c.Labels["stage"] != "" || w.state.State.Ended() || w.state.Reason == rollout.ReasonEmptyStage {
		o.Stage = int16(w.plan.StageFor(c.Labels) + 1)
	}
	return o
}

// decide takes one decision, checks what holds for all decisions, and commits it.
func (w *world) decide() {
	in := w.input()
	before := encodeAll(w.t, in.Plan, &in.State)
	d := rollout.Decide(in)
	if after := encodeAll(w.t, in.Plan, &in.State); !bytes.Equal(before, after) {
		w.t.Fatalf("Decide changed its input")
	}
	if d.Odd() != "" {
		w.t.Fatal(d.Odd())
	}
	w.checkChanged(in, d)
	w.checkIdempotent(in, d)
	w.report(in, d)
	w.clock = in.Clock.Decided(&d)
	w.commit(d)
}

func encodeAll(t tester, p *rollout.Plan, s *rollout.State) []byte {
	b, err := rollout.EncodeHead(p, s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Chunks {
		b = append(b, rollout.EncodeChunk(p, s, i)...)
	}
	return b
}

// checkChanged: what is not named as changed has not changed.
func (w *world) checkChanged(in rollout.Input, d rollout.Decision) {
	for i := range in.State.Len(w.plan) {
		changed := in.State.Record(i) != d.State.Record(i)
		if changed && !slices.Contains(d.Changed, int32(i)) {
			w.t.Fatalf("record of %s changed and is not in Changed", in.State.Member(w.plan, i).Cluster)
		}
	}
	if !d.HeadChanged && !reflect.DeepEqual(in.State.Head, d.State.Head) {
		w.t.Fatalf("head changed and HeadChanged is false: %s", cmp.Diff(in.State.Head, d.State.Head))
	}
}

// checkIdempotent: a decision on the output of a decision changes nothing.
func (w *world) checkIdempotent(in rollout.Input, d rollout.Decision) {
	in.State = d.State
	for i := len(in.Observed); i < d.State.Len(w.plan); i++ {
		in.Observed = append(in.Observed, w.observe(w.clusters[string(d.State.Member(w.plan, i).Cluster)]))
	}
	again := rollout.Decide(in)
	if len(again.Assign) > 0 || len(again.Moves) > 0 || len(again.Changed) > 0 || again.HeadChanged || again.Start != nil {
		for _, i := range again.Changed {
			w.printf("%s: %+v\n%+v\n%+v", in.State.Member(w.plan, int(i)).Cluster, d.State.Record(int(i)), again.State.Record(int(i)), in.Observed[i])
		}
		w.t.Fatalf("not idempotent: assigns %v, moves %+v, changed %v, head %s\n%s", again.Assign, again.Moves, again.Changed,
			cmp.Diff(d.State.Head, again.State.Head), w.flush())
	}
	if !again.WakeAt.IsZero() && (d.WakeAt.IsZero() || again.WakeAt.Before(d.WakeAt)) {
		w.t.Fatalf("WakeAt of the second look is %s, of the first %s", again.WakeAt, d.WakeAt)
	}
}

func (w *world) commit(d rollout.Decision) {
	if len(d.Assign) > 0 {
		w.gen++
		d.State.Stamp(d.Assign, w.gen)
	}
	w.state = w.store(d.State)
	for _, a := range d.Assign {
		c := w.clusters[string(w.state.Member(w.plan, int(a.Member)).Cluster)]
		c.o.Revision, c.o.Generation, c.o.Ready, c.o.Failed, c.o.Removed, c.o.Reason, c.o.Message = a.Revision, w.gen, false, false, false, "", ""
		c.o.Well = false
		c.o.Anew = false
	}
	w.last, w.before = d, w.last.Holds
}

// store writes and reads the state, as the hub does.
func (w *world) store(s rollout.State) rollout.State {
	b, err := rollout.EncodeHead(w.plan, &s)
	w.must(err)
	p, got, err := rollout.DecodeHead(b, w.plan.Strategy)
	w.must(err)
	for i := range s.Chunks {
		w.must(rollout.DecodeChunk(p, &got, i, rollout.EncodeChunk(w.plan, &s, i)))
	}
	if !bytes.Equal(encodeAll(w.t, w.plan, &s), encodeAll(w.t, p, &got)) || !reflect.DeepEqual(p.Members, w.plan.Members) {
		w.t.Fatal("what is read is not what was written")
	}
	if pins := rollout.PinsIn(b); !reflect.DeepEqual(pins, got.Pins) {
		w.t.Fatalf("pins read from the head alone: %v, want %v", pins, got.Pins)
	}
	return got
}

func (w *world) change(what, name string, words []string, kv map[string]string) {
	c := w.clusters[name]
	if c == nil {
		w.t.Fatalf("no cluster %q", name)
	}
	switch what {
	case "ready":
		c.o.Unheard, c.o.Silent = false, false
		c.o.Ready, c.o.Failed, c.o.Reason, c.o.Message = c.o.Revision != 0, false, "", ""
		c.o.Well = c.o.Ready
	case "unready":
		c.o.Unheard, c.o.Silent = false, false
		c.o.Ready, c.o.Well, c.o.Message = false, false, kv["m"]
	case "fail":
		c.o.Ready, c.o.Well, c.o.Failed, c.o.Reason, c.o.Message = false, false, true, words[0], kv["m"]
	case "stale": // a report of the generation before
		c.o.Ready, c.o.Generation = true, c.o.Generation-1
	case "removed":
		c.o.Removed = true
	case "away":
		c.o.Connected = false
	case "unseen": // connected, but its agent does not see the cluster
		c.o.Connected, c.o.NotSeen = false, true
	case "back":
		c.o.Connected, c.o.NotSeen, c.o.Unheard = true, false, false
	case "mute": // back, and its agent has not said how it stands
		c.o.Connected, c.o.NotSeen, c.o.Unheard, c.o.Ready, c.o.Failed = true, false, true, false, false
	case "silent": // the hub has just started, and its agent has not come back yet
		c.o.Connected, c.o.NotSeen, c.o.Unheard, c.o.Silent, c.o.Ready, c.o.Failed = true, false, true, true, false, false
	case "given": // again, with other values, and its agent has not answered
		c.o.Generation, c.o.Ready, c.o.Reason = c.o.Generation+1, false, fleet.TrackerSending
	case "session": // a session has begun in which it has not said yet what changed
		c.o.Connected, c.o.NotSeen, c.o.Unheard, c.o.Silent, c.o.Session = true, false, false, false, rollout.At(w.now)
	case "untold": // its agent is about to tell what the cluster can do
		c.o.Untold = rollout.At(w.now.Add(time.Minute))
	case "told":
		c.o.Untold = 0
	case "lock": // a person keeps its agent out
		c.o.Connected, c.o.Locked = false, true
	case "unlock": // its agent is not back yet
		c.o.Locked = false
	case "lost": // nobody knows any more what it is assigned
		c.o.Lost, c.o.Revision, c.o.Generation, c.o.Ready, c.o.Failed = true, 0, 0, false, false
	case "cordon":
		c.o.Cordoned = true
	case "uncordon":
		c.o.Cordoned = false
	case "hold":
		c.o.Held = true
	case "freeze": // a hold of the module as a whole: it is not ready then, however it does
		c.o.Held, c.o.Ready, c.o.Failed = true, false, false
	case "unhold":
		c.o.Held = false
	case "gone":
		c.o.Gone = true
	case "register", "anew": // again: nothing is left of what was there; anew: nobody saw it gone
		c.o = rollout.Observed{Connected: true, Anew: what == "anew"}
	case "taken": // by another Kubernetes cluster, which joins under the name
		w.gen++
		c.o.Taken, c.o.Unheard, c.o.Ready, c.o.Failed = w.gen, true, false, false
	case "unselect", "select": // unselect CLUSTERS [now|before]: by its labels, or by the new placement only, or by the older
		by := strings.Join(words, "")
		if by != "before" {
			c.unselected = what == "unselect"
		}
		if by != "now" {
			c.outside = what == "unselect"
		}
	case "comes", "fails": // the other module whose source was being fetched
		c.maybe, c.only = false, what == "fails"
	case "label":
		c.Labels = kv
	default:
		w.t.Fatalf("unknown command %q", what)
	}
}

func (w *world) verb(name string, words []string, kv map[string]string) bool {
	if !slices.Contains([]string{"pause", "resume", "approve", "reject", "abort", "retry", "skip", "pin", "unpin", "promote", "rollback", "override"}, name) {
		return false
	}
	v := rollout.Verb{ID: strconv.Itoa(len(w.verbs) + 1), Verb: name, By: kv["by"], At: w.now, Why: kv["m"], Stage: kv["stage"], Gate: kv["gate"],
		Revision: atoi(kv["revision"]), Rollout: atoi(kv["id"]), Scope: kv["scope"], Shorten: kv["shorten"] != ""}
	if len(words) > 0 {
		for _, c := range expand(words[0]) {
			v.Clusters = append(v.Clusters, fleet.ClusterName(c))
		}
	}
	if kv["for"] != "" {
		v.Until = w.now.Add(w.duration(kv["for"]))
	}
	w.verbs = append(w.verbs, v)
	w.decide()
	return true
}

func (w *world) check(words []string, kv map[string]string) {
	for _, c := range w.last.Checks {
		if w.plan.Stages[c.Stage].Name != words[0] || string(c.Position) != words[1] || c.Gate != words[2] {
			continue
		}
		if c.NotBefore.After(w.now) {
			w.wait(c.NotBefore.Sub(w.now).String())
		}
		w.results = append(w.results, rollout.GateResult{Stage: c.Stage, Position: c.Position, Gate: c.Gate, Number: c.Number, At: w.now,
			Outcome: rollout.GateState(words[3]), Value: kv["value"], Message: kv["m"]})
		w.decide()
		return
	}
	w.printf("no such check is open")
}

func (w *world) wait(s string) {
	end := w.now.Add(w.duration(s))
	for range 10000 {
		next := w.last.WakeAt
		if next.IsZero() || next.After(end) {
			break
		}
		w.pass(next)
		w.decide()
	}
	w.pass(end)
	w.decide()
}

func (w *world) pass(until time.Time) {
	w.ran += max(0, until.Sub(w.now))
	w.now = until
}
