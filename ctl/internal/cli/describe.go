package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

func (a *app) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "describe KIND NAME… | KIND/NAME…", Short: "Show " + described() + " in full",
		ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := targets(args)
			if err != nil {
				return err
			}
			first := true
			var errs []error
			for _, t := range found {
				if len(t.names) == 0 {
					return usagef("describe %s: name what to describe", t.kind.plural)
				}
				errs = append(errs, eachName(t.names, func(name string) error {
					if !first {
						a.printf("\n")
					}
					first = false
					return a.describe(cmd.Context(), t.kind, name)
				}))
			}
			return errors.Join(errs...)
		},
	}
}

// sheet is a description: names in one column, values in the next.
type sheet struct{ b strings.Builder }

func (s *sheet) line(name, format string, args ...any) {
	value := table.Clean(fmt.Sprintf(format, args...))
	fmt.Fprintf(&s.b, "%-13s %s\n", name+":", orDash(value))
}

func (s *sheet) section(name string) { fmt.Fprintf(&s.b, "\n%s\n", name) }

func (s *sheet) table(a *app, t *table.Table) {
	var b strings.Builder
	must(t.Write(&b, table.Style{Color: a.color()}))
	s.indented(b.String())
}

func (s *sheet) indented(text string) {
	for line := range strings.Lines(text) {
		s.b.WriteString("  " + line)
	}
}

func (s *sheet) meta(a *app, m *v1.Metadata) {
	s.line("Name", "%s", m.GetName())
	if m.GetProject() != "" {
		s.line("Project", "%s", m.GetProject())
	}
	s.line("Labels", "%s", labelText(m.GetLabels()))
	if len(m.GetAnnotations()) > 0 {
		s.line("Annotations", "%s", labelText(m.GetAnnotations()))
	}
	s.line("Created", "%s", a.stamp(m.GetCreationTimestamp()))
	if m.GetDeletionTimestamp() != nil {
		s.line("Deleting", "since %s", a.stamp(m.GetDeletionTimestamp()))
	}
	if m.GetOrigin() != "" {
		s.line("Origin", "%s", originText(m))
	}
	if m.GetChangedBy() != "" {
		s.line("Changed by", "%s (generation %d) %s", m.GetChangedBy(), m.GetGeneration(), m.GetChangeReason())
	}
}

// described are the kinds that describe speaks of.
func described() string {
	return enumerate(plurals(kindsWith(func(k *kind) bool { return k.describe != nil })), "and")
}

func (a *app) describe(ctx context.Context, k *kind, name string) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	if k.describe == nil {
		return usagef("describe speaks of %s; see: towline get %s -o yaml", described(), k.plural)
	}
	var s sheet
	if err := k.describe(a, ctx, c, &s, name); err != nil {
		return err
	}
	a.printf("%s", s.b.String())
	return nil
}

func (a *app) describeModule(ctx context.Context, c *client.Client, s *sheet, name string) error {
	m, err := a.module(ctx, name)
	if err != nil {
		return err
	}
	st := m.GetStatus()
	s.meta(a, m.GetMetadata())
	s.line("Source", "%s", sourceText(m.GetSpec().GetSource()))
	a.describeFollow(s, m.GetMetadata(), m.GetSpec().GetSource(), st.GetFollow())
	s.line("Revision", "%s", moduleRevision(st))
	s.line("Rollout", "%s", a.moduleState(m).Text)
	if _, told := a.rolloutCell(m); !told {
		if said := a.rolloutSays(st.GetRolloutReason(), st.GetRolloutFacts()); said != "" {
			s.line("Message", "%s", said)
		}
	}
	s.line("Clusters", "%d: %d healthy, %d progressing, %d bad, %s; %d updated", st.GetClusters(), st.GetHealthy(), st.GetProgressing(),
		st.GetBad(), awayText(st), st.GetUpdated())
	if n := st.GetHeldClusters(); n > 0 {
		heard := ""
		if st.GetAway() > st.GetAhead() {
			heard = "; where the agent is away, from when it has heard of that"
		}
		if st.GetAhead() > 0 {
			heard += "; where it is " + aheadOfStore + ", from when that is accepted: " + acceptRestore
		}
		s.line("Held", "nothing is written in %d of them%s", n, heard)
	}
	s.line("Objects", "%s, %d drifting", number(st.GetObjects()), st.GetDrift())
	if waves := m.GetSpec().GetWaves(); waves != "" {
		s.line("Waves", "%s", waves)
	}
	if on := dependsOnText(m.GetSpec()); on != "" {
		s.line("Depends on", "%s", on)
	}
	a.describeConditions(s, st)
	a.describeHolds(s, st.GetHolds())
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{
		Filter: &v1.ObjectFilter{Project: m.GetMetadata().GetProject(), Module: m.GetMetadata().GetName()}}))
	if err != nil {
		return err
	}
	a.describeTrackers(s, trackers)
	if err := describeCapabilities(ctx, c, s, m); err != nil {
		return err
	}
	s.section("Spec")
	var spec strings.Builder
	if err := resource.WriteYAML(&spec, resource.Node(m.GetSpec())); err != nil {
		return err
	}
	s.indented(spec.String())
	return nil
}

// dependsOnText names what comes before a module.
func dependsOnText(spec *v1.ModuleSpec) string {
	var names []string
	for _, d := range spec.GetDependsOn() {
		names = append(names, d.GetModule()+inClusters(d))
	}
	return strings.Join(names, ", ")
}

// inClusters says in which clusters a module comes first; empty: in each in itself.
func inClusters(d *v1.Dependency) string {
	s, err := wire.SelectorFromProto(d.GetClusters())
	switch {
	case err != nil || s == nil:
		return ""
	case s.Everything():
		return " in all its clusters"
	}
	return " in clusters with " + s.String()
}

func (a *app) describeConditions(s *sheet, of *v1.ModuleStatus) {
	conditions := of.GetConditions()
	if len(conditions) == 0 {
		return
	}
	s.section("Conditions")
	t := &table.Table{Columns: left("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")}
	for _, c := range conditions {
		t.Add(text(c.GetType()), text(c.GetStatus()), text(orDash(c.GetReason())), text(a.since(c.GetLastTransitionTime())), text(orDash(a.conditionText(c, of))))
	}
	s.table(a, t)
}

func (a *app) describeHolds(s *sheet, holds []*v1.Hold) {
	if len(holds) == 0 {
		return
	}
	s.section("Holds")
	s.table(a, holdView.table(a, holds))
}

func (a *app) describeTrackers(s *sheet, trackers []*v1.Tracker) {
	if len(trackers) == 0 {
		return
	}
	s.section("In the clusters")
	s.table(a, trackerView.table(a, trackers))
}

func (a *app) describeCluster(ctx context.Context, c *client.Client, s *sheet, name string) error {
	cl, err := a.cluster(ctx, name)
	if err != nil {
		return err
	}
	st := cl.GetStatus()
	s.meta(a, cl.GetMetadata())
	s.line("State", "%s%s", st.GetState(), sinceText(a.clock(st.GetSince())))
	s.line("Last seen", "%s", a.lastSeen(st))
	s.line("Attention", "%s", a.attention(cl).Text)
	if l := st.GetLock(); l != nil {
		s.line("Locked", "by %s%s: %s", orDash(l.GetBy()), sinceText(a.clock(l.GetSince())), orDash(l.GetReason()))
	}
	s.line("Cordoned", "%t", cl.GetSpec().GetCordoned())
	for _, t := range cl.GetSpec().GetTaints() {
		s.line("Taint", "%s", strings.TrimSuffix(t.GetKey()+"="+t.GetValue(), "="))
	}
	s.line("UID", "%s", st.GetUid())
	s.line("Agent", "%s", st.GetAgentVersion())
	s.line("Kubernetes", "%s", kubernetesText(st))
	s.line("Local policy", "%s", a.localPolicy(st))
	s.line("Generation", "%d, acknowledged %d", st.GetGeneration(), st.GetAcknowledgedGeneration())
	s.line("Certificate", "ends %s", a.clock(st.GetCertificateNotAfter()))
	if len(st.GetStrays()) > 0 {
		s.line("Stray syncs", "%s", strings.Join(st.GetStrays(), ", "))
	}
	for _, p := range st.GetPins() {
		s.line("Pin", "%s, by %s: %s", a.pinned(p), orDash(p.GetBy()), orDash(p.GetReason()))
	}
	a.describeHolds(s, st.GetHolds())
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Cluster: name}}))
	if err != nil {
		return err
	}
	a.describeTrackers(s, trackers)
	return nil
}

func (a *app) describeRollout(ctx context.Context, _ *client.Client, s *sheet, name string) error {
	ref, err := a.rolloutRef(name)
	if err != nil {
		return err
	}
	r, err := a.rollout(ctx, ref)
	if err != nil {
		return err
	}
	s.b.WriteString(a.rolloutPage(r, pageOptions{all: true}))
	if verbs := r.GetStatus().GetVerbs(); len(verbs) > 0 {
		s.section("What people did")
		t := &table.Table{Columns: left("WHEN", "WHO", "VERB", "ON", "OUTCOME", "WHY")}
		for _, v := range verbs {
			t.Add(text(a.stamp(v.GetAt())), text(orDash(v.GetBy())), text(v.GetVerb()), text(orDash(verbObject(v))),
				text(orDash(v.GetOutcome())), text(orDash(v.GetReason())))
		}
		s.table(a, t)
	}
	return nil
}

// verbObject is what a verb named: clusters, a stage and its gate, a revision.
func verbObject(v *v1.VerbRecord) string {
	parts := append([]string(nil), v.GetClusters()...)
	if v.GetStage() != "" {
		parts = append(parts, strings.TrimSuffix("stage "+v.GetStage()+"/"+v.GetGate(), "/"))
	}
	if v.GetRevision() > 0 {
		parts = append(parts, revision(v.GetRevision()))
	}
	return strings.Join(parts, ", ")
}

// kubernetesText is the version of a cluster's API server, and how much it serves.
func kubernetesText(st *v1.ClusterStatus) string {
	if st.GetApis() == 0 {
		return st.GetKubernetesVersion()
	}
	return st.GetKubernetesVersion() + ", with " + count(st.GetApis(), "API")
}

// describeCapabilities says what the newest revision of a module was rendered to for what clusters can do, if its chart asks that.
func describeCapabilities(ctx context.Context, c *client.Client, s *sheet, m *v1.Module) error {
	if spec := m.GetSpec(); spec.GetPackage().GetHelm() == nil && spec.GetSource().GetHelm() == nil || m.GetStatus().GetRevision() == 0 {
		return nil
	}
	resp, err := c.Modules.GetRevision(ctx, &v1.GetRevisionRequest{Project: m.GetMetadata().GetProject(), Module: m.GetMetadata().GetName(), Number: m.GetStatus().GetRevision()})
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(resp.GetRevision().GetVariants(), func(v *v1.Variant) bool { return len(v.GetCapabilities()) > 0 }) {
		s.variants(resp.GetRevision())
	}
	return nil
}

func (a *app) describeRevision(ctx context.Context, c *client.Client, s *sheet, name string) error {
	module, number := splitRevision(name)
	ref, err := a.moduleRef(module)
	if err != nil {
		return err
	}
	resp, err := c.Modules.GetRevision(ctx, &v1.GetRevisionRequest{Project: ref.Project, Module: ref.Name, Number: number})
	if errors.Is(err, fleet.ErrNotFound) {
		return fleet.Errorf(fleet.ErrNotFound, "revision %s: there is none of that name; see: towline get revisions %s", name, ref.Display())
	}
	if err != nil {
		return err
	}
	r := resp.GetRevision()
	s.meta(a, r.GetMetadata())
	s.line("Module", "%s", ref.Display())
	s.line("Objects", "%d", r.GetObjects())
	s.line("Clusters", "%d", r.GetClusters())
	s.line("Source", "%s", sourceText(r.GetSpec().GetSource()))
	s.line("Ref", "%s", r.GetResolvedRef())
	if r.GetSourceTime() != nil {
		s.line("Made", "%s", a.stamp(r.GetSourceTime()))
	}
	if r.GetGoesBack() != "" {
		s.line("Goes back", "%s", r.GetGoesBack())
	}
	s.line("Artifact", "%s", r.GetArtifact())
	s.line("Bundle", "%s", r.GetBundle())
	s.variants(r)
	return nil
}

// variants are those of a revision, and what they are for.
func (s *sheet) variants(r *v1.Revision) {
	if len(r.GetVariants()) > 0 {
		s.section("Variants")
	}
	for _, v := range r.GetVariants() {
		says := count(v.GetObjects(), "object") + " in " + count(v.GetClusters(), "cluster") + ", " + v.GetBundle()
		if v.GetProblem() != "" {
			says = v.GetProblem()
		}
		s.indented(table.Clean(variantName(v.GetOverrides(), v.GetCapabilities())+": "+says) + "\n")
	}
}

func (a *app) describeHold(ctx context.Context, _ *client.Client, s *sheet, id string) error {
	h, err := a.hold(ctx, id)
	if err != nil {
		return err
	}
	s.line("ID", "%s", h.GetId())
	s.line("Kind", "%s", h.GetKind())
	if h.GetCatalog() != "" {
		s.line("Catalog", "%s", moduleName(h.GetProject(), h.GetCatalog()))
	} else {
		s.line("Module", "%s", moduleName(h.GetProject(), h.GetModule()))
	}
	s.line("Cluster", "%s", h.GetCluster())
	s.line("Why", "%s", holdSays(h))
	s.line("By", "%s", h.GetBy())
	s.line("Since", "%s", a.stamp(h.GetSince()))
	s.line("Until", "%s", a.stamp(h.GetUntil()))
	s.line("Digest", "%s", h.GetDigest())
	if h.GetKind() == kindFreeze {
		s.line("Source", "%s", holdSource(h))
		s.line("End it with", "%s", holdEnd(h))
	}
	if len(h.GetItems()) > 0 {
		s.section("Items")
	}
	for _, item := range h.GetItems() {
		s.indented(table.Clean(item) + "\n")
	}
	return nil
}
