package rollout

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// WithDefaults is the strategy with every unset field filled in.
func (s Strategy) WithDefaults() Strategy {
	def := func(v *string, d string) {
		if *v == "" {
			*v = d
		}
	}
	def(&s.OnFailure, OnFailurePause)
	def(&s.Rollback.Scope, ScopeMoved)
	def(&s.Rollback.Gates, RollbackGatesSkip)
	def(&s.Offline, OfflineDefer)
	def(&s.LateJoiners, LateFollow)
	def(&s.Unmatched, UnmatchedLast)
	def(&s.OnSupersede, SupersedeReplace)
	if s.ProgressDeadline == 0 {
		s.ProgressDeadline = DefaultProgressDeadline
	}
	if s.RevisionHistoryLimit == 0 {
		s.RevisionHistoryLimit = DefaultRevisionHistoryLimit
	}
	s.Stages = slices.Clone(s.Stages)
	if len(s.Stages) == 0 {
		s.Stages = []Stage{{Name: AllStage, AllowEmpty: true}}
	}
	for i := range s.Stages {
		s.Stages[i].Before = gateDefaults(s.Stages[i].Before)
		s.Stages[i].After = gateDefaults(s.Stages[i].After)
	}
	return s
}

func gateDefaults(in []Gate) []Gate {
	out := slices.Clone(in)
	for i := range out {
		g := &out[i]
		if g.Name == "" {
			g.Name = gateName(in, i)
		}
		switch g.Kind() {
		case GateApproval:
			a := *g.Approval
			a.Approvers = max(a.Approvers, min(1, 1+a.Approvers)) // 0 becomes 1, a negative number stays wrong
			g.Approval = &a
		case GateWebhook:
			g.Webhook = webhookDefaults(*g.Webhook)
		case GateMetric:
			g.Metric = metricDefaults(*g.Metric)
		case GateWindow:
			g.Window = windowDefaults(*g.Window)
		}
	}
	return out
}

// gateName is the kind, numbered if there are several of it.
func gateName(gates []Gate, i int) string {
	kind, nth, all := gates[i].Kind(), 0, 0
	for j := range gates {
		if gates[j].Name != "" || gates[j].Kind() != kind {
			continue
		}
		all++
		if j <= i {
			nth++
		}
	}
	if all == 1 {
		return kind
	}
	return fmt.Sprintf("%s-%d", kind, nth)
}

func webhookDefaults(w Webhook) *Webhook {
	if w.Timeout == 0 {
		w.Timeout = 10 * time.Second
	}
	if w.Interval == 0 {
		w.Interval = 30 * time.Second
	}
	if w.Retries == nil {
		w.Retries = ptr(3)
	}
	return &w
}

func metricDefaults(m Metric) *Metric {
	if m.Count == 0 {
		m.Count = 1
	}
	if m.Interval == 0 {
		m.Interval = time.Minute
	}
	if m.ErrorLimit == nil {
		m.ErrorLimit = ptr(4)
	}
	return &m
}

func windowDefaults(w WindowGate) *WindowGate {
	w.Allow, w.Deny = slices.Clone(w.Allow), slices.Clone(w.Deny)
	for _, list := range [][]Window{w.Allow, w.Deny} {
		for i := range list {
			if list[i].TimeZone == "" {
				list[i].TimeZone = "UTC"
			}
		}
	}
	return &w
}

func ptr[T any](v T) *T { return &v }

// Validate reports the first field that is wrong, by its path, such as rollout.stages[1].maxConcurrency.
func (s Strategy) Validate() error {
	_, err := s.Prepare()
	return err
}

// Prepare is the strategy with defaults, checked, and with selectors and windows compiled.
func (s Strategy) Prepare() (Strategy, error) {
	if s.prepared {
		return s, nil
	}
	s = s.WithDefaults()
	if err := s.check(); err != nil {
		return Strategy{}, fleet.Join("rollout", err)
	}
	s.prepared = true
	return s, nil
}

func (s *Strategy) check() error {
	choices := []struct {
		path, value string
		allowed     []string
	}{
		{"onFailure", s.OnFailure, []string{OnFailurePause, OnFailureAbort, OnFailureRollback}},
		{"rollback.scope", s.Rollback.Scope, []string{ScopeMoved, ScopeFailed}},
		{"rollback.gates", s.Rollback.Gates, []string{RollbackGatesSkip, RollbackGatesRun}},
		{"offline", s.Offline, []string{OfflineDefer, OfflineWait, OfflineFail}},
		{"lateJoiners", s.LateJoiners, []string{LateFollow, LateInclude, LateIgnore}},
		{"unmatched", s.Unmatched, []string{UnmatchedFail, UnmatchedLast}},
		{"onSupersede", s.OnSupersede, []string{SupersedeReplace, SupersedeQueue, SupersedeReject}},
	}
	for _, c := range choices {
		if !slices.Contains(c.allowed, c.value) {
			return fleet.Invalidf(c.path, "%q is unknown; use %s", c.value, orList(c.allowed))
		}
	}
	if s.MinReadyTime < 0 {
		return fleet.Invalid("minReadyTime", "must not be negative")
	}
	if s.ProgressDeadline < 0 {
		return fleet.Invalid("progressDeadline", "must be positive; unset is 10m")
	}
	if s.RevisionHistoryLimit < 0 {
		return fleet.Invalid("revisionHistoryLimit", "must be positive; unset is 10")
	}
	if err := checkConcurrency("rollback.maxConcurrency", s.Rollback.MaxConcurrency); err != nil {
		return err
	}
	return s.checkStages()
}

func orList(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func checkConcurrency(path string, a Amount) error {
	if a.Set && a.N == 0 {
		return fleet.Invalid(path, "0 would never move a cluster; to stop, use pause or an approval gate")
	}
	return nil
}

func (s *Strategy) checkStages() error {
	if len(s.Stages) > 1000 {
		return fleet.Invalidf("stages", "%d stages; at most 1000", len(s.Stages))
	}
	names, rest := map[string]int{}, -1
	for i := range s.Stages {
		st, path := &s.Stages[i], fmt.Sprintf("stages[%d]", i)
		if err := fleet.ValidateLabel(st.Name); err != nil {
			return fleet.Invalid(path+".name", err.Error())
		}
		if st.Name == UnmatchedStage {
			return fleet.Invalidf(path+".name", "%q names the stage of clusters that no stage takes; choose another", st.Name)
		}
		if first, dup := names[st.Name]; dup {
			return fleet.Invalidf(path+".name", "%q is the name of stages[%d] too", st.Name, first)
		}
		names[st.Name] = i
		if rest >= 0 {
			return fleet.Invalidf(path, "no cluster can reach it: stages[%d] has no selector and takes all that are left", rest)
		}
		if st.Selector == nil {
			rest = i
		}
		if err := st.check(); err != nil {
			return fleet.Join(path, err)
		}
	}
	return nil
}

func (st *Stage) check() error {
	if err := st.Selector.Compile(); err != nil {
		return fleet.Join("selector", err)
	}
	if err := checkConcurrency("maxConcurrency", st.MaxConcurrency); err != nil {
		return err
	}
	if st.Soak < 0 {
		return fleet.Invalid("soak", "must not be negative")
	}
	if err := checkGates("before", st.Before); err != nil {
		return err
	}
	return checkGates("after", st.After)
}

func checkGates(field string, gates []Gate) error {
	names := map[string]bool{}
	for i := range gates {
		g, path := &gates[i], fmt.Sprintf("%s[%d]", field, i)
		if n := g.kinds(); n != 1 {
			return fleet.Invalidf(path, "sets %d kinds of gate; set exactly one of approval, window, webhook, metric and expression", n)
		}
		if err := fleet.ValidateLabel(g.Name); err != nil {
			return fleet.Invalid(path+".name", err.Error())
		}
		if names[g.Name] {
			return fleet.Invalidf(path+".name", "%q is used twice", g.Name)
		}
		names[g.Name] = true
		if err := g.check(); err != nil {
			return fleet.Join(path+"."+g.Kind(), err)
		}
	}
	return nil
}

func (g *Gate) kinds() int {
	n := 0
	for _, set := range []bool{g.Approval != nil, g.Window != nil, g.Webhook != nil, g.Metric != nil, g.Expression != nil} {
		if set {
			n++
		}
	}
	return n
}

func (g *Gate) check() error {
	switch {
	case g.Approval != nil:
		return g.Approval.check()
	case g.Window != nil:
		return g.Window.Check()
	case g.Webhook != nil:
		return g.Webhook.check()
	case g.Metric != nil:
		return g.Metric.check()
	}
	if g.Expression.Expression == "" {
		return fleet.Invalid("expression", "is required")
	}
	return nil
}

func (a *Approval) check() error {
	switch {
	case a.Approvers < 1:
		return fleet.Invalid("approvers", "must be at least 1")
	case a.Expires < 0:
		return fleet.Invalid("expires", "must not be negative")
	case len(a.Users) > 0 && len(a.Users) < a.Approvers:
		return fleet.Invalidf("users", "names %d people, but %d must approve", len(a.Users), a.Approvers)
	}
	return nil
}

func (w *Webhook) check() error {
	if err := checkURL("url", w.URL); err != nil {
		return err
	}
	switch {
	case w.Timeout < 0:
		return fleet.Invalid("timeout", "must be positive")
	case w.Interval < 0:
		return fleet.Invalid("interval", "must be positive")
	case *w.Retries < 0:
		return fleet.Invalid("retries", "must not be negative")
	}
	return nil
}

func (m *Metric) check() error {
	if err := checkURL("address", m.Address); err != nil {
		return err
	}
	switch {
	case m.Query == "":
		return fleet.Invalid("query", "is required")
	case m.SuccessCondition == "" && m.FailureCondition == "":
		return fleet.Invalid("successCondition", "set it or failureCondition")
	case m.Count < 0:
		return fleet.Invalid("count", "must be positive")
	case m.Interval < 0:
		return fleet.Invalid("interval", "must be positive")
	case m.FailureLimit < 0:
		return fleet.Invalid("failureLimit", "must not be negative")
	case m.InconclusiveLimit < 0:
		return fleet.Invalid("inconclusiveLimit", "must not be negative")
	case *m.ErrorLimit < 0:
		return fleet.Invalid("errorLimit", "must not be negative")
	}
	return nil
}

func checkURL(path, s string) error {
	u, err := url.Parse(s)
	if s == "" || err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fleet.Invalid(path, "is no http or https URL") // which may have a token in it
	}
	return nil
}
