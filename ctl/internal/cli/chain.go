package cli

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// chain is an explanation: a first sentence, the reasons, and for rollouts the budget and the next look.
type chain struct {
	head    string
	reasons []*v1.Reason
	states  map[string]string // of clusters in the rollout
	foot    []string
}

// chainText writes an explanation for people.
func (a *app) chainText(c chain) string {
	var b strings.Builder
	b.WriteString(c.head + "\n")
	var actions []command
	then := &table.Table{Columns: left("", "")}
	flush := func() {
		must(then.Write(&b, table.Style{Color: a.color(), NoHeaders: true}))
		then.Rows = nil
	}
	n := 0
	for _, r := range c.reasons {
		actions = appendActions(actions, r)
		if r.GetSubject().GetKind() == rollout.AboutBudget {
			continue // told below
		}
		n++
		if !r.GetBlocks() && len(r.GetCauses()) == 0 {
			what, message := a.thenText(r)
			then.Add(textf("  %d  %s", n, what), text(a.reasonEnd(r, message)))
			continue
		}
		flush()
		fmt.Fprintf(&b, "  %d  %s\n", n, a.reasonText(r, c.states))
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
func (a *app) thenText(r *v1.Reason) (what, message string) {
	f := r.GetFacts()
	switch r.GetSubject().GetKind() {
	case rollout.AboutSoak:
		return "then: soak " + soakSpan(f), "starts when no cluster of " + f.GetStage() + " is running"
	case rollout.AboutGate:
		if r.GetReason() != rollout.ReasonApproval || f.GetCode() != rollout.GateApproving {
			break
		}
		what = "then: approval"
		if name := r.GetSubject().GetName(); name != rollout.GateApproval {
			what += " " + name
		}
		return fmt.Sprintf("%s (%d/%d)", what, f.GetCount(), f.GetTotal()), strings.TrimPrefix(notByStarter(f), ", ")
	case rollout.AboutStage, rollout.AboutEnd:
	default:
		return "also: " + subjectSays(r.GetSubject()) + " " + r.GetReason(), a.reasonSays(r, "")
	}
	return "then: " + subjectSays(r.GetSubject()), a.reasonSays(r, "")
}

// namesItsStage are reasons whose sentence is about the stage by name.
var namesItsStage = map[string]bool{rollout.ReasonEmptyStage: true, rollout.ReasonOffline: true, rollout.ReasonNotYetHeard: true, rollout.ReasonSoak: true}

// reasonText is a link that blocks, in one line: "Stage canary is not done: 3 of 6 succeeded".
func (a *app) reasonText(r *v1.Reason, states map[string]string) string {
	f, subject := r.GetFacts(), r.GetSubject()
	said := a.reasonSays(r, states[subject.GetName()])
	out := subjectSays(subject)
	switch {
	case said == "":
		out += " is " + r.GetReason()
	case subject.GetKind() == rollout.AboutStage && f.GetCode() == rollout.ReasonNotDone:
		out += " " + said
	case subject.GetKind() == rollout.AboutStage && namesItsStage[r.GetReason()]:
		out = said
	default:
		out += ": " + said
	}
	out = sentence(out)
	if len(r.GetCauses()) == 0 && r.GetSince() != nil {
		out += ", since " + a.clock(r.GetSince())
	}
	return table.Clean(a.reasonEnd(r, out))
}

// reasonEnd adds by whom and until when, where the sentence has not said it.
func (a *app) reasonEnd(r *v1.Reason, out string) string {
	if r.GetBy() != "" && r.GetBy() != r.GetFacts().GetBy() {
		out += ", by " + r.GetBy()
	}
	if r.GetUntil() != nil && r.GetFacts().GetUntil() == nil {
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
		subject := r.GetSubject().GetName()
		if r.GetSubject().GetKind() != rollout.AboutCluster {
			subject = subjectSays(r.GetSubject())
		}
		at, reason := states[subject], r.GetReason()
		said := a.reasonSays(r, at)
		if !r.GetBlocks() && at == stateDeferred && r.GetFacts().GetDetail() == "" {
			said = "" // that it does not block says what there is to know
		}
		if at == "" || at == reason {
			at, reason = reason, ""
		}
		t.Add(text(indent+branch+subject), stateOrNone(at), text(reason), text(since), text(said), text(a.causeEnd(r, at)))
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
	case r.GetUntil() != nil && at == stateSoaking:
		return "counts at " + a.clock(r.GetUntil())
	case r.GetUntil() != nil:
		return "until " + a.clock(r.GetUntil())
	case !r.GetBlocks() && at == stateDeferred:
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

func appendActions(actions []command, r *v1.Reason) []command {
	for _, x := range r.GetActions() {
		if c := commandOf(x, r); c.line != "" && !slices.Contains(actions, c) {
			actions = append(actions, c)
		}
	}
	for _, cause := range r.GetCauses() {
		actions = appendActions(actions, cause)
	}
	return actions
}

// youCan lists commands.
func (a *app) youCan(b *strings.Builder, actions []command) {
	if len(actions) == 0 {
		return
	}
	const most = 6
	a.commands(b, "You can ", actions[:min(len(actions), most)])
}

// commands lists commands below each other, each with its note, after a head that stands once.
func (a *app) commands(b *strings.Builder, head string, commands []command) {
	t := &table.Table{Columns: left("", "", "")}
	for _, c := range commands {
		t.Add(text(head), colored(table.Cyan, c.line), text(c.note))
		head = ""
	}
	must(t.Write(b, table.Style{Color: a.color(), NoHeaders: true}))
}
