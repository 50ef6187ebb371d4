package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/fielddoc"
	"towline.dev/towline/ctl/internal/resource"
	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

func (a *app) explainCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "explain KIND NAME | KIND/NAME | KIND.FIELD.…", Aliases: []string{"why"},
		Short:   "Say why something stands as it does, or what a field means",
		Example: "  towline explain rollout shop\n  towline explain cluster prod-eu-07\n  towline explain module.spec.rollout",
		Args:    atLeast(1, "a kind and a name, or a field path"), ValidArgsFunction: a.completeTargets,
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
			return a.explain(cmd.Context(), &out, k, name)
		},
	}
	out.flags(cmd)
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
	return fielddoc.Write(a.Out, root)
}

// chain is an explanation: a first sentence, the reasons, and for rollouts the budget and the next look.
type chain struct {
	head    string
	reasons []*v1.Reason
	states  map[string]string // of clusters in the rollout
	foot    []string
}

func (a *app) explain(ctx context.Context, out *output, k kind, name string) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	var found chain
	switch k.name {
	case "rollout":
		found, err = a.explainRollout(ctx, c, name)
	case "module":
		found, err = a.explainModule(ctx, c, name)
	case "cluster":
		found, err = a.explainCluster(ctx, c, name)
	default:
		return usagef("explain speaks of a module, a cluster or a rollout, or of a field such as module.spec.rollout")
	}
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
	if m := s.GetMessage(); m != "" {
		head += " " + strings.ToUpper(m[:1]) + strings.TrimSuffix(m[1:], ".") + "."
	}
	return head
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
	if len(failed) > 0 {
		more := ""
		if len(failed) > 5 {
			more = fmt.Sprintf(" and %d more", len(failed)-5)
			failed = failed[:5]
		}
		out += ", used by " + strings.Join(failed, ", ") + more
	}
	if _, then, found := strings.Cut(budgetText(r), ": "); found {
		out += ". " + strings.ToUpper(then[:1]) + then[1:]
		return out
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

// chainText writes an explanation for people.
func (a *app) chainText(c chain) string {
	var b strings.Builder
	b.WriteString(c.head + "\n")
	var actions []string
	then := &table.Table{Columns: left("", "")}
	flush := func() {
		must(then.Write(&b, table.Style{Color: a.color(), NoHeaders: true}))
		then.Rows = nil
	}
	n := 0
	for _, r := range c.reasons {
		actions = appendActions(actions, r)
		if r.GetSubject() == "budget" {
			continue // told below
		}
		n++
		if !r.GetBlocks() && len(r.GetCauses()) == 0 {
			what, message := thenText(r)
			then.Add(textf("  %d  %s", n, what), text(a.reasonEnd(r, message)))
			continue
		}
		flush()
		fmt.Fprintf(&b, "  %d  %s\n", n, a.reasonText(r))
		a.causes(&b, c.states, r.GetCauses(), "     ")
	}
	flush()
	for _, line := range c.foot {
		b.WriteString(line + "\n")
	}
	a.youCan(&b, actions)
	return b.String()
}

// thenText is what comes later, such as "then: soak 5m", or "also: cluster edge-112 Pinned" for what stands beside it,
// and what is said about it.
func thenText(r *v1.Reason) (what, message string) {
	first, rest, _ := strings.Cut(r.GetMessage(), ", ")
	switch {
	case strings.HasPrefix(r.GetSubject(), "soak "):
		if d, err := time.ParseDuration(first); err == nil {
			first = span(d)
		}
		return "then: soak " + first, rest
	case strings.HasPrefix(r.GetSubject(), "gate ") && r.GetReason() == "Approval":
		what = "then: approval"
		if name, _, _ := strings.Cut(strings.TrimPrefix(r.GetSubject(), "gate "), " "); name != "approval" {
			what += " " + name
		}
		return what + " (" + strings.Replace(first, " of ", "/", 1) + ")", rest
	}
	for _, later := range []string{"stage ", "gate ", "end "} {
		if strings.HasPrefix(r.GetSubject(), later) {
			return "then: " + r.GetSubject(), r.GetMessage()
		}
	}
	return "also: " + r.GetSubject() + " " + r.GetReason(), r.GetMessage()
}

// reasonText is a link that blocks, in one line: "Stage canary is not done: 3 of 6 succeeded".
func (a *app) reasonText(r *v1.Reason) string {
	out := r.GetSubject()
	message := cmp.Or(r.GetMessage(), "is "+r.GetReason())
	switch {
	case strings.HasPrefix(strings.ToLower(message), strings.ToLower(out)):
		out = message
	case strings.HasPrefix(message, "is ") || strings.HasPrefix(message, "would "):
		out += " " + message
	default:
		out += ": " + message
	}
	if out != "" {
		out = strings.ToUpper(out[:1]) + out[1:]
	}
	if len(r.GetCauses()) == 0 && r.GetSince() != nil {
		out += ", since " + a.clock(r.GetSince())
	}
	return table.Clean(a.reasonEnd(r, out))
}

// reasonEnd adds by whom and until when.
func (a *app) reasonEnd(r *v1.Reason, out string) string {
	if r.GetBy() != "" && !strings.Contains(out, r.GetBy()) {
		out += ", by " + r.GetBy()
	}
	if r.GetUntil() != nil && !strings.Contains(out, "until") {
		out += ", until " + a.clock(r.GetUntil())
	}
	return out
}

// causes draws the links below a link as a tree in columns.
func (a *app) causes(b *strings.Builder, states map[string]string, causes []*v1.Reason, indent string) {
	if len(causes) == 0 {
		return
	}
	t := &table.Table{Columns: left("", "", "", "", "", "")}
	for i, r := range causes {
		branch := "├ "
		if i == len(causes)-1 {
			branch = "└ "
		}
		since := ""
		if r.GetSince() != nil {
			since = "since " + a.clock(r.GetSince())
		}
		subject := strings.TrimPrefix(r.GetSubject(), "cluster ")
		at, reason := states[subject], r.GetReason()
		if at == "" || at == reason {
			at, reason = reason, ""
		}
		t.Add(text(indent+branch+subject), stateOrNone(at), text(reason), text(since), text(r.GetMessage()), text(a.causeEnd(r, at)))
	}
	dropEmpty(t)
	must(t.Write(b, table.Style{Color: a.color(), NoHeaders: true}))
}

func stateOrNone(s string) table.Cell {
	if s == "" {
		return table.Cell{}
	}
	return state(s)
}

// causeEnd says what the end of a cause's time means.
func (a *app) causeEnd(r *v1.Reason, at string) string {
	switch {
	case r.GetUntil() != nil && at == stateProgressing:
		return "fails at " + a.clock(r.GetUntil())
	case r.GetUntil() != nil && at == "Soaking":
		return "counts at " + a.clock(r.GetUntil())
	case r.GetUntil() != nil:
		return "until " + a.clock(r.GetUntil())
	case !r.GetBlocks() && at == "Deferred":
		return "does not block"
	}
	return ""
}

// dropEmpty takes out the columns in which no row says anything.
func dropEmpty(t *table.Table) {
	for c := len(t.Columns) - 1; c > 0; c-- {
		if slices.ContainsFunc(t.Rows, func(row []table.Cell) bool { return row[c].Text != "" }) {
			continue
		}
		t.Columns = slices.Delete(t.Columns, c, c+1)
		for i := range t.Rows {
			t.Rows[i] = slices.Delete(t.Rows[i], c, c+1)
		}
	}
}

func appendActions(actions []string, r *v1.Reason) []string {
	for _, action := range r.GetActions() {
		if !slices.Contains(actions, action) {
			actions = append(actions, action)
		}
	}
	for _, cause := range r.GetCauses() {
		actions = appendActions(actions, cause)
	}
	return actions
}

// youCan lists commands; what follows " # " in an action is told beside it.
func (a *app) youCan(b *strings.Builder, actions []string) {
	if len(actions) == 0 {
		return
	}
	const most = 6
	t := &table.Table{Columns: left("", "", "")}
	for i, action := range actions[:min(len(actions), most)] {
		command, note, _ := strings.Cut(action, " # ")
		head := ""
		if i == 0 {
			head = "You can "
		}
		t.Add(text(head), colored(table.Cyan, strings.TrimSpace(command)), text(strings.TrimSpace(note)))
	}
	must(t.Write(b, table.Style{Color: a.color(), NoHeaders: true}))
}

func (a *app) explainModule(ctx context.Context, c *client.Client, name string) (chain, error) {
	m, err := a.module(ctx, name)
	if err != nil {
		return chain{}, err
	}
	meta, s := m.GetMetadata(), m.GetStatus()
	out := chain{head: fmt.Sprintf("module %s: %s of %s healthy, %d progressing, %d bad, %d away; rollout %s.", moduleName(meta.GetProject(), meta.GetName()),
		number(s.GetHealthy()), count(s.GetClusters(), "cluster"), s.GetProgressing(), s.GetBad(), s.GetAway(), moduleRollout(m).Text)}
	for _, h := range s.GetHolds() {
		out.reasons = append(out.reasons, holdReason(h))
	}
	for _, condition := range s.GetConditions() {
		if condition.GetStatus() == "False" && condition.GetType() != "Deleting" {
			out.reasons = append(out.reasons, &v1.Reason{Subject: "module " + meta.GetName(), Reason: condition.GetReason(),
				Message: condition.GetMessage(), Since: condition.GetLastTransitionTime(), Blocks: true})
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
	return a.withTrackers(out, trackers, "clusters", (*v1.Tracker).GetCluster), nil
}

func holdReason(h *v1.Hold) *v1.Reason {
	act := "towline confirm " + h.GetId()
	if h.GetKind() == "Freeze" {
		act = "towline unhold " + h.GetId()
	}
	out := &v1.Reason{Subject: "hold " + h.GetId(), Reason: h.GetKind(), Message: cmp.Or(h.GetReason(), h.GetKind()), Since: h.GetSince(),
		Until: h.GetUntil(), By: h.GetBy(), Blocks: true, Actions: []string{act}}
	for _, item := range h.GetItems() {
		out.Causes = append(out.Causes, &v1.Reason{Subject: item, Blocks: true})
	}
	return out
}

// withTrackers adds what is not as it should be in single clusters, or of single modules.
func (a *app) withTrackers(out chain, trackers []*v1.Tracker, of string, subject func(*v1.Tracker) string) chain {
	const most = 20
	var causes []*v1.Reason
	for _, t := range trackers {
		if t.GetReady() && t.GetConnected() && t.GetDrifted() == 0 && !t.GetRemoving() {
			continue
		}
		reason := cmp.Or(t.GetReason(), t.GetHealth())
		causes = append(causes, &v1.Reason{Subject: subject(t), Reason: reason, Message: t.GetMessage(), Since: t.GetSince(), Blocks: true})
	}
	if len(causes) == 0 {
		if len(out.reasons) == 0 {
			out.head += " Nothing holds it back."
		}
		return out
	}
	said := fmt.Sprintf("%d of %d are not ready", len(causes), len(trackers))
	if len(causes) > most {
		said += fmt.Sprintf("; the first %d", most)
		causes = causes[:most]
	}
	out.reasons = append(out.reasons, &v1.Reason{Subject: of, Reason: "NotReady", Message: said, Causes: causes, Blocks: true})
	return out
}

func (a *app) explainCluster(ctx context.Context, c *client.Client, name string) (chain, error) {
	cl, err := a.cluster(ctx, name)
	if err != nil {
		return chain{}, err
	}
	s := cl.GetStatus()
	out := chain{head: fmt.Sprintf("cluster %s is %s%s, last seen %s; %s.", name, a.paint(stateColors[s.GetState()], s.GetState()),
		sinceText(a.clock(s.GetSince())), a.lastSeen(s), modulesText(s))}
	if said := a.attention(s).Text; said != "-" {
		r := &v1.Reason{Subject: "cluster " + name, Reason: s.GetState(), Message: said, Since: s.GetSince(), Blocks: true}
		if s.GetState() == "Pending" {
			r.Actions = []string{"towline cluster join " + name + " --reissue # a new token for its agent"}
		}
		out.reasons = append(out.reasons, r)
	}
	if cl.GetSpec().GetCordoned() {
		out.reasons = append(out.reasons, &v1.Reason{Subject: "cluster " + name, Reason: "Cordoned", Blocks: true,
			Message: "no new revisions go there; drift is corrected", Actions: []string{"towline cluster uncordon " + name}})
	}
	if s.GetState() == "Disconnected" {
		out.reasons = append(out.reasons, &v1.Reason{Subject: "cluster " + name, Reason: "Disconnected", Since: s.GetSince(), Blocks: true,
			Message: "its agent keeps what it has; new revisions reach it when it is back"})
	}
	holds, err := a.holds(ctx, &v1.ListHoldsRequest{Cluster: name})
	if err != nil {
		return chain{}, err
	}
	for _, h := range holds {
		out.reasons = append(out.reasons, holdReason(h))
	}
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Cluster: name}}))
	if err != nil {
		return chain{}, err
	}
	return a.withTrackers(out, trackers, "modules", func(t *v1.Tracker) string { return "module " + moduleName(t.GetProject(), t.GetModule()) }), nil
}

// modulesText is how many modules of a cluster are healthy, or were when it was seen last.
func modulesText(s *v1.ClusterStatus) string {
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
