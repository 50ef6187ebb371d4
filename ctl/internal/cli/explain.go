package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/fielddoc"
	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/rollout"
)

func (a *app) explainCommand() *cobra.Command {
	var out output
	var inCluster string
	cmd := &cobra.Command{
		Use: "explain KIND NAME | KIND/NAME | KIND.FIELD.…", Aliases: []string{"why"},
		Short: "Say why something stands as it does, or what a field means",
		Example: "  towline explain rollout shop\n  towline explain cluster prod-eu-07\n" +
			"  towline explain object Deployment/shop/web --cluster prod-eu-07\n  towline explain module.spec.rollout",
		Args: atLeast(1, "a kind and a name, or a field path"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.parse(); err != nil {
				return err
			}
			if len(args) == 1 && !strings.Contains(args[0], "/") {
				return a.explainField(args[0])
			}
			k, name, err := one(args)
			if err != nil {
				return err
			}
			return a.explain(cmd.Context(), &out, k, name, inCluster)
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&inCluster, "cluster", "", "cluster of an object")
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

func (a *app) explainField(path string) error {
	root, rest, _ := strings.Cut(path, ".")
	if k, err := kindOf(root); err == nil {
		root = k.name
	}
	if rest != "" {
		root += "." + rest
	}
	return fielddoc.Write(a.Out, fieldRoots(), root)
}

func (a *app) explain(ctx context.Context, out *output, k *kind, name, inCluster string) error {
	switch {
	case inCluster != "" && k.explainIn == nil:
		return usagef("--cluster is for objects: towline explain object KIND/NAMESPACE/NAME --cluster CLUSTER")
	case inCluster == "" && k.explainIn != nil:
		return usagef("say in which cluster: towline explain object %s --cluster CLUSTER", name)
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	if k.explainIn != nil {
		return k.explainIn(a, ctx, c, out, name, inCluster)
	}
	if k.explain == nil {
		with := kindsWith(func(k *kind) bool { return k.explain != nil || k.explainIn != nil })
		return usagef("explain speaks of %s, or of a field such as module.spec.rollout", enumerate(singulars(with), "or"))
	}
	found, err := k.explain(a, ctx, c, name)
	if err != nil {
		return err
	}
	if out.structured() {
		return out.node(a, resource.Items(found.reasons))
	}
	a.printf("%s", a.chainText(found))
	return nil
}

func (a *app) explainRollout(ctx context.Context, c *client.Client, name string) (chain, error) {
	ref, err := a.rolloutRef(name)
	if err != nil {
		return chain{}, err
	}
	resp, err := c.Rollouts.ExplainRollout(ctx, &v1.ExplainRolloutRequest{Project: ref.Module.Project, Module: ref.Module.Name, Number: ref.Number})
	if err != nil {
		return chain{}, err
	}
	r, s := resp.GetRollout(), resp.GetRollout().GetStatus()
	out := chain{reasons: resp.GetReasons(), head: a.rolloutHead(r), states: map[string]string{}}
	for _, c := range s.GetClusters() {
		out.states[c.GetCluster()] = c.GetState()
	}
	if s.GetEnded() == nil {
		if slices.ContainsFunc(out.reasons, (*v1.Reason).GetBlocks) {
			out.head += " It does not move on because:"
		}
		out.foot = append(out.foot, "Budget    "+budgetUse(r))
		if s.GetNextLook() != nil && s.GetNextLook().AsTime().After(a.Now()) {
			out.foot = append(out.foot, "Next look "+a.clock(s.GetNextLook())+a.nextLookOf(s)+", or at any report.")
		}
	}
	return out, nil
}

// rolloutHead is "shop/57 is Progressing, in stage canary for 6m12s."
func (a *app) rolloutHead(r *v1.Rollout) string {
	s := r.GetStatus()
	head := a.paint(table.Cyan, r.GetId()) + " is " + a.paint(stateColors[s.GetState()], stateWord(s))
	for _, stage := range s.GetStages() {
		if st := stage.GetState(); stage.GetStarted() != nil && st != stateSucceeded && st != "Pending" && s.GetEnded() == nil {
			return head + fmt.Sprintf(", in stage %s for %s.", stage.GetName(), a.since(stage.GetStarted()))
		}
	}
	switch {
	case s.GetEnded() != nil:
		head += ", since " + a.since(s.GetEnded()) + "."
	case s.GetStarted() != nil:
		head += ", for " + a.since(s.GetStarted()) + "."
	default:
		head += "."
	}
	if m := a.rolloutSays(s.GetReason(), s.GetFacts()); m != "" {
		head += " " + strings.TrimSuffix(sentence(m), ".") + "."
	}
	return head
}

// sentence begins with a capital letter, unless its first word is a name, such as a.yaml:1 or prod-eu-07.
func sentence(s string) string {
	first, _, _ := strings.Cut(s, " ")
	if s == "" || strings.ContainsAny(strings.TrimRight(first, ".,:;"), "./:_-0123456789") {
		return s
	}
	letter, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(letter)) + s[size:]
}

// budgetUse is "failures 1 of 1 tolerated, used by prod-eu-07. One more rolls back 5 moved clusters."
func budgetUse(r *v1.Rollout) string {
	s := r.GetStatus()
	var failed []string
	for _, c := range s.GetClusters() {
		if c.GetState() == "Failed" || c.GetState() == "TimedOut" {
			failed = append(failed, c.GetCluster())
		}
	}
	out := fmt.Sprintf("failures %d of %d tolerated", s.GetFailed(), s.GetTolerated())
	if f := budget(r); goesBack(r) {
		out, failed = fmt.Sprintf("failures on the way back %d of %d tolerated", f.GetFailed(), f.GetTolerated()), nil
	}
	if len(failed) > 0 {
		out += ", used by " + fleet.Some(failed, 5)
	}
	if then := breach(r); then != "" {
		return out + ". " + sentence(then)
	}
	return out + "."
}

// nextLookOf names the cluster whose deadline the next look is.
func (a *app) nextLookOf(s *v1.RolloutStatus) string {
	for _, c := range s.GetClusters() {
		if c.GetDeadline() != nil && c.GetDeadline().AsTime().Equal(s.GetNextLook().AsTime()) {
			return " (deadline of " + c.GetCluster() + ")"
		}
	}
	return ""
}

func (a *app) explainModule(ctx context.Context, c *client.Client, name string) (chain, error) {
	m, err := a.module(ctx, name)
	if err != nil {
		return chain{}, err
	}
	meta, s := m.GetMetadata(), m.GetStatus()
	out := chain{head: fmt.Sprintf("module %s: %s of %s healthy, %d progressing, %d bad, %s; rollout %s.", moduleName(meta.GetProject(), meta.GetName()),
		number(s.GetHealthy()), count(s.GetClusters(), "cluster"), s.GetProgressing(), s.GetBad(), awayText(s), a.moduleState(m).Text)}
	for _, h := range s.GetHolds() {
		out.reasons = append(out.reasons, holdReason(h))
	}
	for _, condition := range s.GetConditions() {
		switch {
		case condition.GetStatus() != fleet.ConditionFalse && condition.GetReason() != fleet.ReadyRegressed:
		case condition.GetType() == follow.Condition:
			out.reasons = append(out.reasons, followReason(condition, m))
		case condition.GetType() == fleet.ConditionSpecValid:
			out.reasons = append(out.reasons, &v1.Reason{Subject: about(subjectModule, meta.GetName()), Reason: condition.GetReason(),
				Facts: &v1.Facts{Code: fleet.ConditionSpecValid, Detail: specSays(condition)}, Blocks: true})
		default:
			why := condition.GetReason()
			if readySays(why, readyFacts(why, s)) == "" { // it is the rollout's state
				why = cmp.Or(s.GetRolloutReason(), why)
			}
			out.reasons = append(out.reasons, &v1.Reason{Subject: about(subjectModule, meta.GetName()), Reason: why,
				Facts: readyFacts(why, s), Since: condition.GetLastTransitionTime(), Blocks: true})
		}
	}
	if s.GetRollout() != "" {
		resp, err := c.Rollouts.ExplainRollout(ctx, &v1.ExplainRolloutRequest{Project: meta.GetProject(), Module: meta.GetName()})
		if err != nil {
			return chain{}, err
		}
		out.reasons = append(out.reasons, resp.GetReasons()...)
	}
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Project: meta.GetProject(), Module: meta.GetName()}}))
	if err != nil {
		return chain{}, err
	}
	return a.withTrackers(out, trackers, rollout.AboutClusters, func(t *v1.Tracker) *v1.Subject {
		return about(rollout.AboutCluster, t.GetCluster())
	}), nil
}

func holdReason(h *v1.Hold) *v1.Reason {
	out := &v1.Reason{Subject: about(subjectHold, h.GetId()), Reason: h.GetKind(), Facts: &v1.Facts{Code: h.GetCode(), Detail: h.GetReason()},
		Since: h.GetSince(), Until: h.GetUntil(), By: h.GetBy(), Blocks: true, Actions: []*v1.Action{{Method: rollout.DoConfirm, Hold: h.GetId()}}}
	if h.GetSource() == fleet.HoldOfAnnotation {
		out.Facts, out.Actions = &v1.Facts{Detail: strings.TrimPrefix(holdSays(h)+"; end it with: "+holdEnd(h), "; ")}, nil
	}
	for _, item := range h.GetItems() {
		out.Causes = append(out.Causes, &v1.Reason{Subject: about(subjectItem, item), Blocks: true})
	}
	return out
}

// withTrackers adds what is not as it should be in single clusters, or of single modules.
func (a *app) withTrackers(out chain, trackers []*v1.Tracker, of string, subject func(*v1.Tracker) *v1.Subject) chain {
	var unready, changed []*v1.Reason
	for _, t := range trackers {
		if t.GetReady() && t.GetConnected() && t.GetDrifted() == 0 && !t.GetRemoving() {
			continue
		}
		reason := cmp.Or(t.GetReason(), t.GetHealth())
		cause := &v1.Reason{Subject: subject(t), Reason: reason, Facts: &v1.Facts{Detail: a.trackerSays(t)}, Since: t.GetSince(), Blocks: true}
		if countsAsHealthy(t) {
			changed = append(changed, cause)
		} else {
			unready = append(unready, cause)
		}
	}
	if len(unready)+len(changed)+len(out.reasons) == 0 {
		out.head += " Nothing holds it back."
		return out
	}
	for _, list := range []struct {
		reason string
		causes []*v1.Reason
	}{{reasonNotAllReady, unready}, {reasonHealthyApart, changed}} {
		if len(list.causes) > 0 {
			out.reasons = append(out.reasons, firstCauses(about(of, ""), list.reason, list.causes, len(trackers)))
		}
	}
	return out
}

// countsAsHealthy reports that a module is counted under HEALTHY where it is held, or where somebody changed what it has there.
func countsAsHealthy(t *v1.Tracker) bool {
	fine := t.GetHealth() == string(fleet.HealthHealthy) || t.GetHealth() == string(fleet.HealthSuspended)
	return t.GetConnected() && !t.GetRemoving() && (t.GetReady() || fine && t.GetSync() == string(fleet.SyncSynced))
}

// firstCauses is a reason with the first of its causes.
func firstCauses(subject *v1.Subject, reason string, causes []*v1.Reason, total int) *v1.Reason {
	const most = 20
	f := &v1.Facts{Count: int32(len(causes)), Total: int32(total)}
	if len(causes) > most {
		f.Limit, causes = most, causes[:most]
	}
	return &v1.Reason{Subject: subject, Reason: reason, Facts: f, Causes: causes, Blocks: true}
}

func (a *app) explainCluster(ctx context.Context, c *client.Client, name string) (chain, error) {
	cl, err := a.cluster(ctx, name)
	if err != nil {
		return chain{}, err
	}
	s := cl.GetStatus()
	out := chain{head: fmt.Sprintf("cluster %s is %s%s, last seen %s; %s.", name, a.paint(stateColors[s.GetState()], s.GetState()),
		sinceText(a.clock(s.GetSince())), a.lastSeen(s), modulesText(s))}
	out.reasons = clusterReasons(cl)
	for _, h := range s.GetHolds() {
		out.reasons = append(out.reasons, holdReason(h))
	}
	for _, p := range s.GetPins() {
		ref := moduleName(p.GetProject(), p.GetModule())
		out.reasons = append(out.reasons, &v1.Reason{Subject: about(subjectModule, ref), Reason: rollout.ReasonPinned, By: p.GetBy(),
			Facts: &v1.Facts{Detail: cmp.Or(p.GetReason(), a.pinned(p))}, Since: p.GetSince(), Until: p.GetUntil(),
			Actions: []*v1.Action{{Method: rollout.DoUnpin, Project: p.GetProject(), Module: p.GetModule(), Cluster: name}}})
	}
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Cluster: name}}))
	if err != nil {
		return chain{}, err
	}
	return a.withTrackers(out, trackers, subjectModules, func(t *v1.Tracker) *v1.Subject {
		return about(subjectModule, moduleName(t.GetProject(), t.GetModule()))
	}), nil
}

// clusterReasons are those of the cluster as a whole.
func clusterReasons(c *v1.Cluster) []*v1.Reason {
	s, subject := c.GetStatus(), about(rollout.AboutCluster, c.GetMetadata().GetName())
	var out []*v1.Reason
	add := func(r *v1.Reason) {
		r.Subject, r.Blocks = subject, true
		out = append(out, r)
	}
	join := []*v1.Action{{Method: rollout.DoJoinCluster, Cluster: subject.GetName()}}
	switch fleet.ClusterState(s.GetState()) {
	case fleet.ClusterPending:
		add(&v1.Reason{Reason: s.GetState(), Facts: &v1.Facts{Code: codeToken, Until: s.GetTokenExpires()}, Since: s.GetSince(), Actions: join})
	case fleet.ClusterRevoked:
		add(&v1.Reason{Reason: s.GetState(), Facts: &v1.Facts{Code: codeWhole}, Since: s.GetSince(), Actions: join})
	case fleet.ClusterRemoving:
		add(&v1.Reason{Reason: s.GetState(), Facts: &v1.Facts{Code: codeWhole}, Since: s.GetSince()})
	}
	if l := s.GetLock(); l != nil {
		add(&v1.Reason{Reason: rollout.ReasonLocked, By: l.GetBy(), Facts: &v1.Facts{Code: codeWhole, Detail: l.GetReason()}, Since: l.GetSince(),
			Actions: []*v1.Action{{Method: rollout.DoUnlockCluster, Cluster: subject.GetName()}}})
	}
	for _, x := range troubles(s) {
		add(&v1.Reason{Reason: x.GetType(), Facts: &v1.Facts{Detail: heardThen(s) + conditionSays(x)}, Since: x.GetLastTransitionTime()})
	}
	if n := s.GetAttention(); n != nil {
		add(&v1.Reason{Reason: n.GetCode(), Facts: n.GetFacts(), Since: s.GetSince()})
	}
	if c.GetSpec().GetCordoned() {
		add(&v1.Reason{Reason: rollout.ReasonCordoned, Facts: &v1.Facts{Code: codeWhole},
			Actions: []*v1.Action{{Method: rollout.DoPutCluster, Cluster: subject.GetName()}}})
	}
	if fleet.ClusterState(s.GetState()) == fleet.ClusterDisconnected {
		add(&v1.Reason{Reason: rollout.ReasonDisconnected, Facts: &v1.Facts{Code: codeWhole}, Since: s.GetSince()})
	}
	return out
}

// modulesText is how many modules of a cluster are healthy, or were when it was seen last.
func modulesText(s *v1.ClusterStatus) string {
	if uncounted(s) {
		return "of its " + count(s.GetModules(), "module") + " nothing is known"
	}
	if unseen(s) {
		return fmt.Sprintf("%d of %s were healthy then", s.GetWasHealthy(), count(s.GetModules(), "module"))
	}
	return fmt.Sprintf("%d of %s healthy", s.GetHealthy(), count(s.GetModules(), "module"))
}

// sinceText is " since T", or nothing without a time.
func sinceText(clock string) string {
	if clock == "-" {
		return ""
	}
	return " since " + clock
}
