package wire

import (
	"errors"
	"fmt"
	"strings"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// StrategyFromProto reads a rollout strategy and fills in its defaults; nil is the strategy of one stage. Errors name
// the field below the strategy.
func StrategyFromProto(in *towlinev1.RolloutStrategy) (rollout.Strategy, error) {
	f := fields{}
	s := rollout.Strategy{
		MaxFailures: f.amount("maxFailures", in.GetMaxFailures()), OnFailure: in.GetOnFailure(),
		Rollback: rollout.Rollback{Scope: in.GetRollback().GetScope(), Gates: in.GetRollback().GetGates(),
			MaxConcurrency: f.amount("rollback.maxConcurrency", in.GetRollback().GetMaxConcurrency())},
		MinReadyTime:     f.duration("minReadyTime", in.GetMinReadyTime()),
		ProgressDeadline: f.duration("progressDeadline", in.GetProgressDeadline()),
		Offline:          in.GetOffline(), LateJoiners: in.GetLateJoiners(), Unmatched: in.GetUnmatched(), OnSupersede: in.GetOnSupersede(),
		RevisionHistoryLimit: int(in.GetRevisionHistoryLimit()), External: in.GetExternal() != nil,
	}
	for i, st := range in.GetStages() {
		s.Stages = append(s.Stages, f.stage(fmt.Sprintf("stages[%d]", i), st))
	}
	if f.err != nil {
		return s, f.err
	}
	s, err := s.Prepare()
	var fe *fleet.FieldError
	if errors.As(err, &fe) {
		return s, fleet.Invalid(strings.TrimPrefix(fe.Path, "rollout."), fe.Message)
	}
	return s, err
}

// fields remembers the first error, so that conversions read as values.
type fields struct{ err error }

func (f *fields) fail(err error) {
	if f.err == nil && err != nil {
		f.err = err
	}
}

func (f *fields) amount(path, s string) rollout.Amount {
	a, err := rollout.ParseAmount(s)
	if err != nil {
		f.fail(fleet.Invalid(path, err.Error()))
	}
	return a
}

func (f *fields) duration(path, s string) time.Duration {
	d, err := Duration(path, s, 0)
	f.fail(err)
	return d
}

func (f *fields) stage(path string, in *towlinev1.Stage) rollout.Stage {
	sel, err := SelectorFromProto(in.GetSelector())
	if err != nil {
		f.fail(fleet.Join(path+".selector", err))
	}
	s := rollout.Stage{Name: in.GetName(), Selector: sel, SortBy: in.GetSortBy(), AllowEmpty: in.GetAllowEmpty(),
		MaxConcurrency: f.amount(path+".maxConcurrency", in.GetMaxConcurrency()),
		MaxFailures:    f.amount(path+".maxFailures", in.GetMaxFailures()),
		Soak:           f.duration(path+".soak", in.GetSoak())}
	for i, g := range in.GetBefore() {
		s.Before = append(s.Before, f.gate(fmt.Sprintf("%s.before[%d]", path, i), g))
	}
	for i, g := range in.GetAfter() {
		s.After = append(s.After, f.gate(fmt.Sprintf("%s.after[%d]", path, i), g))
	}
	return s
}

func (f *fields) gate(path string, in *towlinev1.Gate) rollout.Gate {
	g := rollout.Gate{Name: in.GetName()}
	kinds := 0
	if a := in.GetApproval(); a != nil {
		kinds++
		g.Approval = &rollout.Approval{Approvers: int(a.GetApprovers()), Users: a.GetUsers(),
			Expires: f.duration(path+".approval.expires", a.GetExpires())}
	}
	if w := in.GetWindow(); w != nil {
		kinds++
		g.Window = &rollout.WindowGate{Allow: f.windows(path+".window.allow", w.GetAllow()), Deny: f.windows(path+".window.deny", w.GetDeny())}
	}
	if w := in.GetWebhook(); w != nil {
		kinds++
		g.Webhook = &rollout.Webhook{URL: w.GetUrl(), HMACKeyEnv: w.GetHmacKeyEnv(), Retries: optionalInt(w.Retries),
			Timeout:  f.duration(path+".webhook.timeout", w.GetTimeout()),
			Interval: f.duration(path+".webhook.interval", w.GetInterval())}
	}
	if m := in.GetMetric(); m != nil {
		kinds++
		g.Metric = &rollout.Metric{Address: m.GetAddress(), Query: m.GetQuery(), SuccessCondition: m.GetSuccessCondition(),
			FailureCondition: m.GetFailureCondition(), Count: int(m.GetCount()), FailureLimit: int(m.GetFailureLimit()),
			InconclusiveLimit: int(m.GetInconclusiveLimit()), ErrorLimit: optionalInt(m.ErrorLimit),
			Interval: f.duration(path+".metric.interval", m.GetInterval())}
	}
	if e := in.GetExpression(); e != nil {
		kinds++
		g.Expression = &rollout.Expression{Expression: e.GetExpression(), FailureExpression: e.GetFailureExpression()}
	}
	if kinds != 1 {
		f.fail(fleet.Invalid(path, "set exactly one of approval, window, webhook, metric and expression"))
	}
	return g
}

func (f *fields) windows(path string, in []*towlinev1.Window) []rollout.Window {
	out := make([]rollout.Window, 0, len(in))
	for i, w := range in {
		out = append(out, rollout.Window{Cron: w.GetCron(), TimeZone: w.GetTimeZone(),
			Duration: f.duration(fmt.Sprintf("%s[%d].duration", path, i), w.GetDuration())})
	}
	return out
}

func optionalInt(v *int32) *int {
	if v == nil {
		return nil
	}
	n := int(*v)
	return &n
}
