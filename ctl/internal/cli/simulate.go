package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

const liveClusters = "live"

// simulateOptions are the hypotheses of a simulation.
type simulateOptions struct {
	file, clusters, readyAfter, start, output string
	fail, offline                             []string
	gates                                     map[string]string
	gateTime                                  time.Duration
	seed                                      uint64
}

func (a *app) rolloutSimulateCommand() *cobra.Command {
	o := &simulateOptions{}
	cmd := &cobra.Command{
		Use: "simulate -f FILE", Short: "Print the timeline of a rollout that is not made",
		Long: "Runs the hub's own decision function in virtual time and prints every batch, gate and failure, and how many clusters\n" +
			"are not ready at once at most. Nothing is changed. With --clusters FILE no hub is asked: all clusters run r1 and move to r2.",
		Example: "  towline rollout simulate -f shop.yaml --fail prod-eu-07 --offline 20%\n" +
			"  towline get clusters -o yaml > fleet.yaml; towline rollout simulate -f shop.yaml --clusters fleet.yaml",
		Args: exactly(0, "no arguments; name the module's file with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.simulate(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "filename", "f", "", "file with one module, or - for stdin")
	f.StringVar(&o.clusters, "clusters", liveClusters, "live: those of the hub, as they are now; or a `FILE` of clusters")
	f.StringSliceVar(&o.fail, "fail", nil, "`CLUSTER` that fails with the new revision; may be repeated")
	f.StringSliceVar(&o.offline, "offline", nil, "`CLUSTER` that is away, or a part of all, such as 20%; may be repeated")
	f.StringToStringVar(&o.gates, "gate", nil, "outcome of a gate, as `STAGE/after/NAME=Failed`; others are Successful")
	f.DurationVar(&o.gateTime, "gate-time", 0, "how long a gate or an approval takes")
	f.StringVar(&o.readyAfter, "ready-after", "5s-30s", "`MIN-MAX` time from a move until the cluster is ready")
	f.StringVar(&o.start, "start", "", "when it starts, for windows: a time (2026-07-03T12:00:00Z) or a date (default now)")
	f.Uint64Var(&o.seed, "seed", 1, "draws the clusters of --offline N% and the times of --ready-after")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	must(cmd.RegisterFlagCompletionFunc("fail", a.completeKind("cluster")))
	must(cmd.RegisterFlagCompletionFunc("offline", a.completeKind("cluster")))
	return cmd
}

func (a *app) simulate(ctx context.Context, o *simulateOptions) error {
	in, err := o.input(a.Now(), a.Zone)
	if err != nil {
		return err
	}
	file, m, err := a.simulatedModule(o)
	if err != nil {
		return err
	}
	in.Strategy = m.Strategy
	away, err := a.simulatedFleet(ctx, o, m, &in)
	if err != nil {
		return err
	}
	in.Plan.EmptyOverrides = assemble.Unmatched(m.Overrides, rollout.Selected(in.Plan.Clusters))
	plan, _, err := rollout.NewPlan(in.Strategy, in.Plan)
	if err != nil {
		return err
	}
	for _, member := range plan.Members {
		if away[member.Cluster] && !slices.Contains(in.Offline, member.Cluster) {
			in.Offline = append(in.Offline, member.Cluster)
		}
	}
	timeline, err := rollout.Simulate(in)
	if err != nil {
		return simulationError(err)
	}
	unchanged, deleting := false, ""
	if o.clusters == liveClusters {
		unchanged, deleting = a.putsNothing(ctx, file)
	}
	if o.output == "table" {
		switch {
		case deleting != "":
			a.printf("%s. What follows leaves that out:\n\n", deleting)
		case unchanged:
			a.printf("Module %s is as the file says: apply begins no rollout and changes nothing. What another revision would do by it:\n\n", m.Ref.Display())
		}
		a.printf("%s%s", a.timelinePage(&in, plan, &timeline), waitsUnknown(m))
		return nil
	}
	out := simulationOf(&in, plan, &timeline)
	out.Unchanged, out.Deleting = unchanged, deleting
	for _, first := range m.Dependencies() {
		out.WaitsNotSimulated = append(out.WaitsNotSimulated, first.Name)
	}
	return a.printPlain(out, o.output)
}

// putsNothing reports that a put of the module would change nothing, as the hub says: it has the same spec, and does not try again what failed. Of one
// that is being deleted it says what a put would come to.
func (a *app) putsNothing(ctx context.Context, m *v1.Module) (unchanged bool, deleting string) {
	c, err := a.hub(ctx)
	if err != nil {
		return false, ""
	}
	ref := refOfModule(m)
	has, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	if err != nil {
		return false, ""
	}
	if has.GetModule().GetMetadata().GetDeletionTimestamp() != nil {
		if _, err := c.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: m, DryRun: true}); errors.Is(err, fleet.ErrPrecondition) {
			return false, "An apply is refused: " + err.Error()
		}
		return false, "Module " + ref.Display() + " is being deleted: an apply makes another one of its name, which a cluster gets when it is rid of all that this one has there"
	}
	then, err := wire.SpecDigest(m.GetSpec())
	now, errNow := wire.SpecDigest(has.GetModule().GetSpec())
	if errors.Join(err, errNow) != nil || then != now { // the hub would fetch what is another one
		return false, ""
	}
	put, err := c.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: m, DryRun: true})
	return err == nil && put.GetRollout() == "", ""
}

// waitsUnknown says what of the module's order the simulation leaves out.
func waitsUnknown(m *wire.Module) string {
	var out strings.Builder
	names := make([]string, len(m.DependsOn))
	for i, first := range m.DependsOn {
		names[i] = first.Name
	}
	if len(names) > 0 {
		fmt.Fprintf(&out, "Not simulated: each cluster begins when it has %s Ready, so that it may take longer.\n", strings.Join(names, ", "))
	}
	for _, d := range m.DependsOnSets {
		in := "all its clusters"
		if !d.Clusters.Everything() {
			in = "all its clusters with " + d.Clusters.String()
		}
		fmt.Fprintf(&out, "Not simulated: nothing begins before %s is Ready in %s.\n", d.Module.Name, in)
	}
	switch {
	case m.Waves == fleet.WavesWaitHealthy:
		out.WriteString("Waves: each begins in a cluster when the one before is healthy there; --ready-after is the time of all of them.\n")
	case m.Waves == "" && m.Package.Helm != nil:
		out.WriteString("Waves: if the chart has hooks, each begins in a cluster when the one before is healthy there; --ready-after is the time of all of them.\n")
	}
	return out.String()
}

// simulationError names a hypothesis by its flag.
func simulationError(err error) error {
	var field *fleet.FieldError
	if errors.As(err, &field) {
		return usagef("--%s: %s", strings.Replace(field.Path, "gates", "gate", 1), field.Message)
	}
	return err
}

// input is what the flags say.
func (o *simulateOptions) input(now time.Time, zone *time.Location) (rollout.SimInput, error) {
	in := rollout.SimInput{Start: now, Seed: o.seed, GateTime: o.gateTime, Gates: map[string]rollout.GateState{}}
	if o.file == "" {
		return in, usagef("rollout simulate: name the module's file with -f")
	}
	if !slices.Contains([]string{"table", "json", "yaml"}, o.output) {
		return in, usagef("-o %s: simulate prints table, json or yaml", o.output)
	}
	lo, hi, found := strings.Cut(o.readyAfter, "-")
	var errs [2]error
	in.ApplyMin, errs[0] = time.ParseDuration(lo)
	in.ApplyMax, errs[1] = time.ParseDuration(hi)
	if !found || errors.Join(errs[:]...) != nil || in.ApplyMin <= 0 || in.ApplyMax < in.ApplyMin {
		return in, usagef("--ready-after %s: write two times with the smaller first, such as 5s-30s", o.readyAfter)
	}
	for _, name := range o.fail {
		in.Fail = append(in.Fail, fleet.ClusterName(name))
	}
	for _, s := range o.offline {
		percent, isPercent := strings.CutSuffix(s, "%")
		if !isPercent {
			in.Offline = append(in.Offline, fleet.ClusterName(s))
			continue
		}
		n, err := strconv.Atoi(percent)
		if err != nil || n < 0 || n > 100 {
			return in, usagef("--offline %s: write a cluster's name, or 0%% to 100%%", s)
		}
		in.OfflinePercent = n
	}
	for gate, outcome := range o.gates {
		if !slices.Contains(gateOutcomes, rollout.GateState(outcome)) {
			return in, usagef("--gate %s=%s: the outcome is none of Successful, Failed, Error, Inconclusive and Running", gate, outcome)
		}
		in.Gates[gate] = rollout.GateState(outcome)
	}
	return in, o.setStart(&in, zone)
}

var gateOutcomes = []rollout.GateState{rollout.GateSuccessful, rollout.GateFailed, rollout.GateError, rollout.GateInconclusive, rollout.GateRunning}

func (o *simulateOptions) setStart(in *rollout.SimInput, zone *time.Location) error {
	if o.start == "" {
		return nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, o.start, zone); err == nil {
			in.Start = t
			return nil
		}
	}
	return usagef("--start %s: write a time (2026-07-03T12:00:00Z) or a date (2026-07-03)", o.start)
}

// simulatedModule reads the one module of the file.
func (a *app) simulatedModule(o *simulateOptions) (*v1.Module, *wire.Module, error) {
	found, err := resource.Load([]string{o.file}, resource.Options{Stdin: a.In, Kinds: inFiles()})
	if err != nil {
		return nil, nil, err
	}
	if err := a.settleProjects(found); err != nil {
		return nil, nil, err
	}
	var modules []*v1.Module
	for _, r := range found {
		if m, ok := r.Message.(*v1.Module); ok {
			modules = append(modules, m)
		}
	}
	if len(modules) != 1 {
		return nil, nil, usagef("%s: has %s; simulate takes one", o.file, count(len(modules), "module"))
	}
	m, err := wire.ModuleFromProto(modules[0])
	if err != nil {
		return nil, nil, fmt.Errorf("%s: module %s: %w", o.file, modules[0].GetMetadata().GetName(), err)
	}
	if m.External {
		return nil, nil, usagef("%s: module %s: its rollouts are external: another program decides", o.file, m.Ref.Display())
	}
	return modules[0], m, nil
}

// simulatedFleet fills in the plan's clusters and revisions, and tells which clusters are away now.
func (a *app) simulatedFleet(ctx context.Context, o *simulateOptions, m *wire.Module, in *rollout.SimInput) (map[fleet.ClusterName]bool, error) {
	in.Plan = rollout.PlanInput{ID: fleet.RolloutID{Module: m.Ref, Number: 1}, Revision: 2, From: 1}
	if o.clusters == liveClusters {
		return a.liveFleet(ctx, m, in)
	}
	found, err := resource.Load([]string{o.clusters}, resource.Options{Stdin: a.In, Kinds: inFiles()})
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		c, ok := r.Message.(*v1.Cluster)
		if !ok {
			return nil, usagef("%s: %s %s is no cluster", o.clusters, strings.ToLower(r.Kind), r.Meta().GetName())
		}
		value, err := wire.ClusterFromProto(c)
		if err != nil {
			return nil, fmt.Errorf("%s: cluster %s: %w", o.clusters, r.Meta().GetName(), err)
		}
		if assemble.Places(m.Placement, value, false) {
			in.Plan.Clusters = append(in.Plan.Clusters, rollout.Candidate{Cluster: value, Selected: true, Revision: in.Plan.From})
		}
	}
	return nil, nil
}

// liveFleet is what the hub has: clusters, what they run, who is away, what is pinned or held.
func (a *app) liveFleet(ctx context.Context, m *wire.Module, in *rollout.SimInput) (map[fleet.ClusterName]bool, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	in.Plan.From, in.Plan.Revision = 0, 1
	if err := liveModule(ctx, c, m.Ref, &in.Plan); err != nil {
		return nil, err
	}
	older, err := placementBefore(ctx, c, m.Ref, in.Plan.From)
	if err != nil {
		return nil, err
	}
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Project: m.Ref.Project, Module: m.Ref.Name}}))
	if err != nil {
		return nil, err
	}
	runs := map[string]int64{}
	for _, t := range trackers {
		if !t.GetRemoving() {
			runs[t.GetCluster()] = t.GetRevision()
		}
	}
	clusters, err := collect(c.AllClusters(ctx, &v1.ListClustersRequest{}))
	if err != nil {
		return nil, err
	}
	holds, err := collect(c.AllHolds(ctx, &v1.ListHoldsRequest{Project: m.Ref.Project}))
	if err != nil {
		return nil, err
	}
	away := map[fleet.ClusterName]bool{}
	in.Held = map[fleet.ClusterName]time.Time{}
	for _, cl := range clusters {
		if cl.GetStatus().GetState() == "Removing" {
			continue
		}
		value, err := wire.ClusterFromProto(cl)
		if err != nil {
			return nil, err
		}
		x := rollout.Candidate{Cluster: value, Revision: runs[cl.GetMetadata().GetName()]}
		x.Selected = assemble.Places(m.Placement, value, x.Revision != 0)
		x.UnselectedOlder = !assemble.Places(older, value, x.Revision != 0)
		x.Last = !x.Selected && cl.GetStatus().GetModules() == 1
		in.Plan.Clusters = append(in.Plan.Clusters, x)
		in.Plan.Pins = append(in.Plan.Pins, pinsOf(m.Ref, cl)...)
		state := fleet.ClusterState(cl.GetStatus().GetState())
		connected := state != fleet.ClusterPending && state != fleet.ClusterDisconnected && state != fleet.ClusterRevoked && cl.GetStatus().GetLock() == nil
		if !connected || blind(cl.GetStatus()) {
			away[value.Name] = true
		}
		if until, held := wire.Stopped(cl, m.Ref, holds, connected, in.Start); held {
			in.Held[value.Name] = until
		}
	}
	return away, nil
}

// placementBefore is that of the revision to which the rollout goes back if it has to; none: there is no such revision.
func placementBefore(ctx context.Context, c *client.Client, ref fleet.ModuleRef, revision int64) (fleet.Placement, error) {
	if revision == 0 {
		return fleet.Placement{}, nil
	}
	resp, err := c.Modules.GetRevision(ctx, &v1.GetRevisionRequest{Project: ref.Project, Module: ref.Name, Number: revision})
	if err != nil {
		return fleet.Placement{}, err
	}
	p, err := wire.PlacementFromProto(resp.GetRevision().GetSpec().GetPlacement())
	if err != nil {
		return p, fmt.Errorf("module %s r%d: placement: %w", ref.Display(), revision, err)
	}
	return p, nil
}

// liveModule is where the module stands: what succeeded last, and what comes next.
func liveModule(ctx context.Context, c *client.Client, ref fleet.ModuleRef, plan *rollout.PlanInput) error {
	resp, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	s := resp.GetModule().GetStatus()
	plan.From, plan.Revision = s.GetSucceededRevision(), s.GetRevision()+1
	if s.GetRollout() == "" {
		return nil
	}
	last, err := c.Rollouts.GetRollout(ctx, &v1.GetRolloutRequest{Project: ref.Project, Module: ref.Name})
	if err != nil {
		return err
	}
	plan.ID.Number = last.GetRollout().GetNumber() + 1
	return nil
}

// pinsOf are the pins of a module in a cluster.
func pinsOf(ref fleet.ModuleRef, cl *v1.Cluster) (out []rollout.Pin) {
	for _, p := range cl.GetStatus().GetPins() {
		if p.GetProject() != ref.Project || p.GetModule() != ref.Name {
			continue
		}
		pin := rollout.Pin{Cluster: fleet.ClusterName(cl.GetMetadata().GetName()), By: p.GetBy(), Why: p.GetReason(), At: rollout.At(p.GetSince().AsTime())}
		if p.GetUntil() != nil {
			pin.Until = rollout.At(p.GetUntil().AsTime())
		}
		out = append(out, pin)
	}
	return out
}

// timelinePage is the simulation for people.
func (a *app) timelinePage(in *rollout.SimInput, plan *rollout.Plan, x *rollout.Timeline) string {
	var b strings.Builder
	style := table.Style{Color: a.color(), Width: a.width()}
	fmt.Fprintf(&b, "Simulation of %s   %s   %s   seed %d\n\n", a.paint(table.Cyan, plan.ID.String()), move(plan.From, plan.Revision),
		count(len(plan.Members), "cluster"), in.Seed)
	t := &table.Table{Columns: columns(right("AT"), left("WHAT", "CHANGE"))}
	for _, e := range x.Events {
		t.Add(text(e.At.String()), text(simSubject(&e)), colored(stateColors[e.To], a.simSays(&e)+listed(e.Clusters)))
	}
	must(t.Write(&b, style))
	b.WriteString("\n")
	must(simulatedStages(x).Write(&b, style))
	end := string(x.State)
	if x.Stuck && x.Reason != "" {
		end += " (" + x.Reason + ")"
	}
	fmt.Fprintf(&b, "\n%s after %s, %s.", a.paint(stateColors[string(x.State)], end), x.Duration, count(x.Steps, "step"))
	if said := a.rolloutSays(x.Reason, wire.FactsToProto(x.Facts)); said != "" && x.State != rollout.Succeeded {
		fmt.Fprintf(&b, " %s.", strings.TrimSuffix(sentence(said), "."))
	}
	fmt.Fprintf(&b, "\nAt most %d of %s not ready at once", x.MaxNotReady, count(len(plan.Members), "cluster"))
	if x.MaxNotReady > 0 {
		fmt.Fprintf(&b, ", first at %s", x.MaxNotReadyAt)
	}
	b.WriteString(".\n")
	return b.String()
}

// simSubject is what a line of a simulation speaks of: it is of one rollout.
func simSubject(e *rollout.SimEvent) string {
	if e.Subject.Kind == rollout.AboutRollout {
		return "rollout"
	}
	return subjectSays(wire.SubjectToProto(e.Subject))
}

// plainOf is a message as the API's JSON has it, without what is not set.
func plainOf(m proto.Message) (out any) {
	data, err := protojson.Marshal(m)
	must(err)
	must(json.Unmarshal(data, &out))
	return out
}

// listed is ": c1, c2, c3 and 7 more".
func listed(clusters []fleet.ClusterName) string {
	const most = 5
	if len(clusters) == 0 {
		return ""
	}
	return ": " + fleet.Some(clusters, most)
}

func simulatedStages(x *rollout.Timeline) *table.Table {
	t := &table.Table{Columns: columns(left("STAGE", "STATE"), right("DONE", "FAILED", "DEFERRED", "SKIPPED", "TO GO", "LIMIT"))}
	t.Columns[2].Head = true
	for i, s := range x.Summary.Stages {
		t.Add(textf("%d %s", i+1, s.Name), state(string(s.State)), textf("%d/%d", s.Succeeded, s.Total), bad(int32(s.Failed)),
			graded(table.Grey, int32(s.Deferred)), num(s.Skipped+s.Removed), num(s.ToGo), num(s.Limit))
	}
	return t
}

// simulation is the timeline for programs.
type simulation struct {
	Module        string     `json:"module"`
	FromRevision  int64      `json:"fromRevision"`
	Revision      int64      `json:"revision"`
	Unchanged     bool       `json:"unchanged"`          // the module is as the file says: a put begins no rollout
	Deleting      string     `json:"deleting,omitempty"` // the module is being deleted: what a put would come to
	Clusters      int        `json:"clusters"`
	Seed          uint64     `json:"seed"`
	State         string     `json:"state"`
	Reason        string     `json:"reason"`
	Facts         any        `json:"facts"`
	Stuck         bool       `json:"stuck"`
	Duration      string     `json:"duration"`
	Steps         int        `json:"steps"`
	MaxNotReady   int        `json:"maxNotReady"`
	MaxNotReadyAt string     `json:"maxNotReadyAt"`
	Stages        []simStage `json:"stages"`
	Events        []simEvent `json:"events"`
	// WaitsNotSimulated are the modules for which each cluster waits.
	WaitsNotSimulated []string `json:"waitsNotSimulated"`
}

type simStage struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Total    int    `json:"total"`
	Done     int    `json:"done"`
	Failed   int    `json:"failed"`
	Deferred int    `json:"deferred"`
	Skipped  int    `json:"skipped"`
	ToGo     int    `json:"toGo"`
	Limit    int    `json:"limit"`
}

// simAbout is as Subject of the API.
type simAbout struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Stage    string `json:"stage"`
	Position string `json:"position"`
}

type simEvent struct {
	At       string              `json:"at"`
	Subject  simAbout            `json:"subject"`
	From     string              `json:"from"`
	To       string              `json:"to"`
	Reason   string              `json:"reason"`
	Facts    any                 `json:"facts"`
	Clusters []fleet.ClusterName `json:"clusters"`
}

func simulationOf(in *rollout.SimInput, plan *rollout.Plan, x *rollout.Timeline) simulation {
	out := simulation{Module: plan.ID.Module.Display(), FromRevision: plan.From, Revision: plan.Revision, Clusters: len(plan.Members), Seed: in.Seed,
		State: string(x.State), Reason: x.Reason, Facts: plainOf(wire.FactsToProto(x.Facts)), Stuck: x.Stuck, Duration: x.Duration.String(), Steps: x.Steps,
		MaxNotReady: x.MaxNotReady, MaxNotReadyAt: x.MaxNotReadyAt.String(), Stages: []simStage{}, Events: []simEvent{},
		WaitsNotSimulated: []string{}}
	for _, s := range x.Summary.Stages {
		out.Stages = append(out.Stages, simStage{Name: s.Name, State: string(s.State), Total: s.Total, Done: s.Succeeded, Failed: s.Failed,
			Deferred: s.Deferred, Skipped: s.Skipped + s.Removed, ToGo: s.ToGo, Limit: s.Limit})
	}
	for _, e := range x.Events {
		out.Events = append(out.Events, simEvent{At: e.At.String(), Subject: simAbout{e.Subject.Kind, e.Subject.Name, e.Subject.Stage, string(e.Subject.Position)}, From: e.From, To: e.To, Reason: e.Reason,
			Facts: plainOf(wire.FactsToProto(e.Facts)), Clusters: append([]fleet.ClusterName{}, e.Clusters...)})
	}
	return out
}
