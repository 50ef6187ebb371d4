package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
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
	out = sentence(out)
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
	a.commands(b, "You can ", actions[:min(len(actions), most)])
}

// noteMark stands in an action between a command and what is told beside it.
const noteMark = " # "

// commands lists commands below each other, each with its note, after a head that stands once.
func (a *app) commands(b *strings.Builder, head string, commands []string) {
	t := &table.Table{Columns: left("", "", "")}
	for _, c := range commands {
		command, note, _ := strings.Cut(c, noteMark)
		t.Add(text(head), colored(table.Cyan, strings.TrimSpace(command)), text(strings.TrimSpace(note)))
		head = ""
	}
	must(t.Write(b, table.Style{Color: a.color(), NoHeaders: true}))
}
