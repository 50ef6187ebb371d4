package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// pageOptions say how much of a rollout is shown.
type pageOptions struct {
	all   bool // every cluster
	width int  // of the terminal; 0: not one
	rows  int  // of clusters at most; 0: all
}

// rolloutPage is the whole status of a rollout for people.
func (a *app) rolloutPage(r *v1.Rollout, o pageOptions) string {
	var b strings.Builder
	style := table.Style{Color: a.color(), Width: o.width}
	b.WriteString(a.pageHead(r, o.width))
	if stages := a.stageTable(r, o.width); len(stages.Rows) > 0 {
		b.WriteString("\n")
		must(stages.Write(&b, style))
	}
	clusters, hidden := a.clusterTable(r, o)
	if len(clusters.Rows) > 0 {
		b.WriteString("\n")
		must(clusters.Write(&b, style))
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "and %s more: towline rollout status %s --watch=false\n", count(hidden, "cluster"), r.GetId())
	}
	a.next(&b, nextCommands(r), o.width)
	return b.String()
}

// next lists commands in a line, or below each other when something is told beside one.
func (a *app) next(b *strings.Builder, commands []command, width int) {
	switch {
	case len(commands) == 0:
		return
	case slices.ContainsFunc(commands, func(c command) bool { return c.note != "" }):
		b.WriteString("\n")
		a.commands(b, "Next  ", commands)
		return
	}
	lines := make([]string, len(commands))
	for i, c := range commands {
		lines[i] = a.paint(table.Cyan, c.line)
	}
	fmt.Fprintf(b, "\nNext   %s\n", flow(lines, "     ", 7, width))
}

// flow puts parts into one line, or into as many as a terminal of the width needs; further lines are indented.
func flow(parts []string, gap string, indent, width int) string {
	var b strings.Builder
	used := indent
	for i, p := range parts {
		n := visibleLen(p)
		switch {
		case i == 0:
		case width > 0 && used+len(gap)+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			used = indent
		default:
			b.WriteString(gap)
			used += len(gap)
		}
		b.WriteString(p)
		used += n
	}
	return b.String()
}

var colorCode = regexp.MustCompile("\x1b\\[[0-9]*m")

func visibleLen(s string) int { return utf8.RuneCountInString(colorCode.ReplaceAllString(s, "")) }

func (a *app) pageHead(r *v1.Rollout, width int) string {
	s := r.GetStatus()
	parts := []string{"Rollout " + a.paint(table.Cyan, r.GetId()), move(r.GetFromRevision(), r.GetRevision()), a.paint(stateColors[s.GetState()], stateWord(s))}
	if s.GetStarted() != nil {
		end := a.Now()
		if s.GetEnded() != nil {
			end = s.GetEnded().AsTime()
		}
		parts = append(parts, span(end.Sub(s.GetStarted().AsTime())))
	}
	if s.GetStartedBy() != "" {
		by := "started by " + table.Clean(s.GetStartedBy())
		if s.GetStartReason() != "" {
			by += fmt.Sprintf(": %q", s.GetStartReason())
		}
		parts = append(parts, by)
	}
	out := flow(parts, "   ", 0, width) + "\n"
	out += flow([]string{budgetText(r), "Deadline " + cmp.Or(r.GetStrategy().GetProgressDeadline(), "10m") + " a cluster.",
		"onFailure " + cmp.Or(r.GetStrategy().GetOnFailure(), "Pause")}, "   ", 0, width) + "\n"
	if m := a.rolloutSays(s.GetReason(), s.GetFacts()); m != "" && s.GetState() != stateProgressing && s.GetState() != stateSucceeded {
		out += table.Clean(m) + "\n"
	}
	return out
}

// stateWord is the state with the reason for which it stands.
func stateWord(s *v1.RolloutStatus) string {
	switch {
	case s.GetState() == stateSucceeded:
		return succeededWord(s.GetFacts(), s.GetDeferred())
	case s.GetReason() == "" || s.GetReason() == s.GetState() || s.GetState() == stateProgressing:
		return cmp.Or(s.GetState(), "Pending")
	}
	return s.GetState() + " (" + s.GetReason() + ")"
}

// succeededWord is "Succeeded, 3 deferred, 1 skipped": with all who have no part in it. A hub of before says only who is deferred.
func succeededWord(f *v1.Facts, deferred int32) string {
	out := stateSucceeded
	if left := cmp.Or(leftOutSays(f), tally(counted{deferred, "deferred"})); left != "" {
		out += ", " + left
	}
	return out
}

// budgetText says how many failures are tolerated and what one too many does.
func budgetText(r *v1.Rollout) string {
	out := fmt.Sprintf("Failures %d, tolerated %d", r.GetStatus().GetFailed(), r.GetStatus().GetTolerated())
	switch f := budget(r); {
	case goesBack(r):
		out = fmt.Sprintf("Failures on the way back %d, tolerated %d", f.GetFailed(), f.GetTolerated())
	case r.GetStatus().GetState() == string(rollout.RolledBack) && r.GetStatus().GetReason() == rollout.ReasonFailures: // what had failed is back
		out = fmt.Sprintf("More failures than the %d tolerated; %d clusters failed on the way back", f.GetTolerated(), f.GetFailed())
	}
	if then := breach(r); then != "" {
		return out + ": " + then
	}
	return out + "."
}

// budget is what the hub says of the failures that are left, else what follows from the rollout's own limit.
func budget(r *v1.Rollout) *v1.Facts {
	s := r.GetStatus()
	for _, x := range s.GetWaitingFor() {
		if x.GetSubject().GetKind() == rollout.AboutBudget {
			return x.GetFacts()
		}
	}
	f := &v1.Facts{Failed: s.GetFailed(), Tolerated: s.GetTolerated()}
	if s.GetEnded() == nil && f.Failed <= f.Tolerated {
		f.Code = cmp.Or(r.GetStrategy().GetOnFailure(), rollout.OnFailurePause)
	}
	return f
}

func goesBack(r *v1.Rollout) bool { return r.GetStatus().GetState() == string(rollout.RollingBack) }

// breach is "one more rolls back 5 moved clusters."; empty: there are too many already, or failures do nothing any more.
func breach(r *v1.Rollout) string {
	s, f := r.GetStatus(), budget(r)
	if f.GetCode() == "" {
		return ""
	}
	left := f.GetTolerated() - f.GetFailed() + 1
	many, verb := fmt.Sprintf("%d more", left), func(v string) string { return v }
	if left == 1 {
		many, verb = "one more", func(v string) string { return v + "s" }
	}
	if f.GetStage() != "" {
		many += " in stage " + f.GetStage()
	}
	switch on := f.GetCode(); {
	case on == "Abort":
		return fmt.Sprintf("%s %s it.", many, verb("abort"))
	case on == "Rollback" && r.GetFromRevision() == 0:
		return fmt.Sprintf("%s %s it, since there is no earlier revision.", many, verb("pause"))
	case on == "Rollback":
		what := count(s.GetMoved(), "moved cluster")
		if r.GetStrategy().GetRollback().GetScope() == "Failed" {
			what = "the failed clusters"
		}
		return fmt.Sprintf("%s %s back %s.", many, verb("roll"), what)
	}
	return fmt.Sprintf("%s %s it.", many, verb("pause"))
}

func (a *app) stageTable(r *v1.Rollout, width int) *table.Table {
	t := &table.Table{Columns: columns(left("STAGE", "STATE"), right("DONE", "RUNNING", "FAILED", "DEFERRED", "TO GO", "LIMIT"), left("PROGRESS"))}
	t.Columns[2].Head = true
	stages := r.GetStatus().GetStages()
	for i, s := range stages {
		if row := a.gateRow(r, i, "before"); row != nil {
			t.Add(row...)
		}
		limit := "all"
		if s.GetLimit() > 0 && s.GetLimit() < s.GetTotal() {
			limit = number(s.GetLimit())
		}
		t.Add(textf("%d %s", i+1, s.GetName()), state(s.GetState()), textf("%d/%d", s.GetDone(), s.GetTotal()), num(s.GetRunning()),
			bad(s.GetFailed()), graded(table.Grey, s.GetDeferred()), num(s.GetToGo()), text(limit), text(a.progress(r, i, width)))
		for _, position := range []string{"after", "rollback"} {
			if row := a.gateRow(r, i, position); row != nil {
				t.Add(row...)
			}
		}
	}
	return t
}

// progress is the stage's bar and why it stands.
func (a *app) progress(r *v1.Rollout, i, width int) string {
	s := r.GetStatus().GetStages()[i]
	out := bar(s, barWidth(width))
	switch {
	case s.GetReason() == "" || s.GetReason() == r.GetStatus().GetReason() && proto.Equal(s.GetFacts(), r.GetStatus().GetFacts()): // that stands above
		return out
	case s.GetReason() == rollout.ReasonSoak:
		return out + " until " + a.clock(s.GetFacts().GetUntil())
	}
	return strings.TrimRight(out+" "+a.rolloutSays(s.GetReason(), s.GetFacts()), " ")
}

// barWidth is 6, and more where a wide terminal has room.
func barWidth(terminal int) int { return min(max((terminal-100)/2, 6), 24) }

// bar shows done as #, running as =, failed as x, deferred and skipped as - and the rest as dots, each in proportion;
// what is there at all has at least one mark if there is room.
func bar(s *v1.StageStatus, width int) string {
	parts := []struct {
		mark string
		n    int32
	}{{"#", s.GetDone()}, {"=", s.GetRunning()}, {"x", s.GetFailed()}, {"-", s.GetDeferred() + s.GetSkipped()}}
	total := max(s.GetTotal(), 1)
	var b strings.Builder
	used := 0
	for _, p := range parts {
		n := int(p.n) * width / int(total)
		if n == 0 && p.n > 0 {
			n = 1
		}
		n = min(n, width-used)
		b.WriteString(strings.Repeat(p.mark, n))
		used += n
	}
	return "[" + b.String() + strings.Repeat(".", width-used) + "]"
}

// gateStates are those of gates, in the order in which one stands for all on a side of a stage: what keeps the rollout before what does
// not. One that is not known here goes first.
var gateStates = []string{"Failed", "Error", "Inconclusive", "Running", "Pending", "Successful"}

// gateRow is the line below or above a stage that says what must hold there; nil without such conditions.
func (a *app) gateRow(r *v1.Rollout, i int, position string) []table.Cell {
	s := r.GetStatus().GetStages()[i]
	var what []string
	at := "Pending"
	if strategy := r.GetStrategy().GetStages(); position == "after" && i < len(strategy) {
		if soak := strategy[i].GetSoak(); soak != "" && soak != "0s" && soak != "0" {
			what = append(what, a.soakText(s, soak))
		}
	}
	switch {
	case position == "after" && s.GetState() == stateSucceeded:
		at = "Successful"
	case position == "after" && s.GetState() == "Soaking":
		at = "Soaking"
	}
	gates := ""
	for _, g := range s.GetGates() {
		if g.GetPosition() != position {
			continue
		}
		what = append(what, a.gateText(g))
		if gates == "" || slices.Index(gateStates, g.GetState()) < slices.Index(gateStates, gates) {
			gates = g.GetState()
		}
	}
	if len(what) == 0 {
		return nil
	}
	if gates != "" && (position != "after" || gates != "Pending" && gates != "Successful") {
		at = gates
	}
	return []table.Cell{text("  └ " + position), state(at), {}, {}, {}, {}, {}, {}, text(strings.Join(what, ", then "))}
}

func (a *app) soakText(s *v1.StageStatus, soak string) string {
	if s.GetSoakUntil() != nil && s.GetState() == "Soaking" {
		return fmt.Sprintf("soak %s, ends in %s", soak, span(s.GetSoakUntil().AsTime().Sub(a.Now())))
	}
	return "soak " + soak
}

// gateText is such as "approval (0 of 1)" or "window business-hours: opens at 09:00".
func (a *app) gateText(g *v1.GateStatus) string {
	out := g.GetType()
	if g.GetName() != "" && g.GetName() != g.GetType() {
		out += " " + g.GetName()
	}
	if g.GetType() == "approval" {
		return out + fmt.Sprintf(" (%d of %d)", len(g.GetApprovedBy()), max(g.GetApprovers(), 1))
	}
	if said := a.gateSays(g.GetFacts()); said != "" && g.GetState() != "Pending" && g.GetState() != "Successful" {
		out += ": " + said
	}
	return out
}

// severity orders clusters: what needs eyes first. 0 is fine.
var severity = map[string]int{"Failed": 1, "TimedOut": 2, "RolledBack": 3, "Progressing": 4, "Soaking": 5, "Deferred": 6, "Skipped": 7, "Removed": 8}

// clusterTable lists the clusters that are not fine, the worst first; hidden is how many more there are.
func (a *app) clusterTable(r *v1.Rollout, o pageOptions) (*table.Table, int) {
	t := &table.Table{Columns: left("CLUSTER", "STAGE", "STATE", "REV", "FOR", "WHAT")}
	var shown []*v1.ClusterProgress
	for _, c := range r.GetStatus().GetClusters() {
		if o.all || severity[c.GetState()] > 0 || c.GetReason() == rollout.ReasonWouldLeave {
			shown = append(shown, c)
		}
	}
	rank := func(c *v1.ClusterProgress) int { return cmp.Or(severity[c.GetState()], 100) }
	slices.SortStableFunc(shown, func(x, y *v1.ClusterProgress) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), strings.Compare(x.GetCluster(), y.GetCluster()))
	})
	hidden := 0
	if o.rows > 0 && len(shown) > o.rows {
		hidden = len(shown) - o.rows
		shown = shown[:o.rows]
	}
	for _, c := range shown {
		t.Add(text(c.GetCluster()), text(orDash(c.GetStage())), state(c.GetState()), text(revision(c.GetRevision())),
			text(a.since(c.GetSince())), text(a.clusterWhat(c)))
	}
	return t, hidden
}

func (a *app) clusterWhat(c *v1.ClusterProgress) string {
	what := cmp.Or(a.memberSays(c.GetState(), c.GetReason(), c.GetFacts()), c.GetReason())
	if c.GetState() == stateDeferred && what != c.GetReason() {
		what = c.GetReason() + "; " + what
	}
	if c.GetReason() == rollout.ReasonWouldLeave {
		return what + "; waits for a confirm"
	}
	running := c.GetState() == stateProgressing || c.GetState() == stateSoaking
	if running && c.GetDeadline() != nil {
		left := "deadline in " + span(c.GetDeadline().AsTime().Sub(a.Now()))
		if what == "" {
			return left
		}
		return what + "; " + left
	}
	return orDash(what)
}
