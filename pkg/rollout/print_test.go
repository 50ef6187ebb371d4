package rollout_test

import (
	"fmt"
	"strings"
	"time"

	"towline.dev/towline/pkg/rollout"
)

// report prints what a decision does: one line per transition, clusters with the same one together.
func (w *world) report(in rollout.Input, d rollout.Decision) {
	if w.quiet {
		return
	}
	type line struct{ text, clusters string }
	var lines []line
	for _, m := range d.Moves {
		text, name := w.moveText(d, m)
		if n := len(lines); name != "" && n > 0 && lines[n-1].clusters != "" && lines[n-1].text == text {
			lines[n-1].clusters += "," + name
			continue
		}
		lines = append(lines, line{text, name})
	}
	for _, o := range d.Outcomes {
		w.printf("> %s", o.Sentence)
		for _, n := range o.Notes {
			w.printf(">   %s%s %s", n.Code, suffix(" ", n.Facts.String()), n.Actions)
		}
	}
	at := d.State
	stamp := in.Now.Sub(epoch)
	for _, l := range lines {
		if l.clusters != "" {
			l.text = l.clusters + " " + l.text
		}
		w.printf("%6s  %s", short(stamp), l.text)
	}
	if len(d.Assign) > 0 {
		w.printf("%6s  step %d: %s", short(stamp), at.Step, w.assignText(d))
	}
	for _, h := range d.Holds {
		if len(in.Confirmed) == 0 && len(d.Moves) > 0 {
			w.printf("%6s  hold: %s", short(stamp), strings.Join(h.Items, ","))
		}
	}
	if d.Start != nil {
		w.printf("%6s  new rollout of r%d asked for by %s", short(stamp), d.Start.Revision, d.Start.By)
	}
}

func short(d time.Duration) string {
	if d >= 24*time.Hour {
		return fmt.Sprintf("%dd%s", d/(24*time.Hour), short(d%(24*time.Hour)))
	}
	s := d.String()
	s = strings.Replace(s, "m0s", "m", 1)
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (w *world) moveText(d rollout.Decision, m rollout.Transition) (text, clusterName string) {
	change := m.From + " → " + m.To
	if m.From == "" {
		change = "→ " + m.To
	}
	if why := strings.TrimSpace(m.Reason + " " + m.Facts.String()); why != "" {
		change += " (" + why + ")"
	}
	switch m.Kind {
	case rollout.OfStage:
		return "stage " + w.plan.Stages[m.Stage].Name + ": " + change, ""
	case rollout.OfGate:
		return fmt.Sprintf("gate %s %s %s: %s", m.Gate, m.Position, w.plan.Stages[m.Stage].Name, change), ""
	case rollout.OfCluster:
		return change, string(d.State.Member(w.plan, int(m.Member)).Cluster)
	}
	return w.plan.ID.String() + ": " + change, ""
}

func (w *world) assignText(d rollout.Decision) string {
	var parts []string
	var names []string
	last := ""
	flush := func() {
		if len(names) > 0 {
			parts = append(parts, strings.Join(names, ",")+" "+last)
		}
		names = nil
	}
	for _, a := range d.Assign {
		what := fmt.Sprintf("to r%d", a.Revision)
		if a.Leave {
			what = "leave"
		}
		if what != last {
			flush()
		}
		last = what
		names = append(names, string(d.State.Member(w.plan, int(a.Member)).Cluster))
	}
	flush()
	return strings.Join(parts, "; ")
}

// status prints the tree.
func (w *world) status() {
	s := rollout.Summarize(w.input())
	w.printf("%s %s %s%s", w.plan.ID, s.State, s.Reason, suffix(": ", s.Facts.String()))
	w.printf("  total %d joined %d to go %d running %d succeeded %d failed %d/%d deferred %d skipped %d back %d removed %d moved %d",
		s.Total, s.Joined, s.ToGo, s.Running, s.Succeeded, s.Failed, s.Tolerated, s.Deferred, s.Skipped, s.RolledBack, s.Removed, s.Moved)
	if sum := s.ToGo + s.Running + s.Succeeded + s.Failed + s.Deferred + s.Skipped + s.RolledBack + s.Removed; sum != s.Total+s.Joined {
		w.t.Errorf("counts add up to %d, not %d", sum, s.Total+s.Joined)
	}
	for _, g := range s.Stages {
		w.printf("  %s %s: %d/%d done, %d running, limit %d%s", g.Name, g.State, g.Succeeded, g.Total+g.Joined, g.Running, g.Limit, suffix("; ", strings.TrimSpace(g.Reason+" "+g.Facts.String())))
		for _, x := range g.Gates {
			w.printf("    %s %s %s%s%s", x.Position, x.Name, x.State, suffix(": ", x.Facts.String()), suffix("; approved by ", strings.Join(x.ApprovedBy, ",")))
		}
	}
}

func suffix(sep, s string) string {
	if s == "" {
		return ""
	}
	return sep + s
}

// list prints every member.
func (w *world) list() {
	in := w.input()
	for i := range w.state.Len(w.plan) {
		c := rollout.ClusterOf(in, i)
		w.printf("%s %s %s r%d %s%s", c.Cluster, c.Stage, c.State, c.Revision, c.Reason, suffix(": ", c.Facts.String()))
	}
}

func (w *world) explain(reasons []rollout.Reason, depth int) {
	for _, r := range reasons {
		mark := "-"
		if r.Blocks {
			mark = "!"
		}
		line := fmt.Sprintf("%s%s %s  %s%s", strings.Repeat("  ", depth), mark, r.Subject, r.Reason, suffix("  ", r.Facts.String()))
		if !r.Since.IsZero() {
			line += "  since " + r.Since.Format("15:04:05")
		}
		if !r.Until.IsZero() {
			line += "  until " + r.Until.Format("15:04:05")
		}
		if r.By != "" {
			line += "  by " + r.By
		}
		w.printf("%s", line)
		for _, a := range r.Actions {
			w.printf("%s    %s", strings.Repeat("  ", depth), a)
		}
		w.explain(r.Causes, depth+1)
	}
}
