package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rollout/expr"
)

const (
	maxMetricBody = 1 << 20
	maxSeries     = 1000
)

// measured is the answer of a Prometheus server.
type measured struct {
	Status    string `json:"status"`
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
	Warnings []string `json:"warnings"`
	Partial  bool     `json:"isPartial"` // of VictoriaMetrics
}

func (g *Gates) metric(ctx context.Context, m *rollout.Metric) expr.Answer {
	u, err := url.Parse(m.Address)
	if err != nil {
		return failure("the metric's address is no URL")
	}
	u = u.JoinPath("api", "v1", "query")
	q := u.Query()
	q.Set("query", m.Query)
	u.RawQuery = q.Encode()
	r := &request{method: http.MethodGet, url: u, header: http.Header{}, timeout: g.o.HTTP.Timeout, retries: *g.o.HTTP.Retries, limit: maxMetricBody, shown: "query"}
	out, err := g.do(ctx, r)
	if err != nil {
		return failure("%s", err)
	}
	result, warning, err := r.numbers(out)
	if err != nil {
		return failure("%s", err)
	}
	ctx, cancel := context.WithTimeout(ctx, evaluateIn)
	defer cancel()
	return doubted(expr.Metric(ctx, m, result), warning)
}

// doubted is a measurement of which the server has said with a warning that it may be of less than there is, as of half the errors where a store of Thanos is
// away: it is no success. What is told of a measurement is its value, so the warning stands there, too.
func doubted(a expr.Answer, warning string) expr.Answer {
	if warning == "" {
		return a
	}
	if a.Outcome == rollout.GateSuccessful {
		a.Outcome = rollout.GateInconclusive
	}
	but := ", but the server warns: " + warning
	a.Message += but
	if a.Value != "" {
		a.Value += but
	}
	return a
}

// warning is what a server says of an answer that it takes for one. Older ones have notes there about how the query is written, which say nothing of
// the answer.
func (got *measured) warning() string {
	said := slices.DeleteFunc(slices.Clone(got.Warnings), func(w string) bool { return strings.HasPrefix(w, "PromQL info: ") })
	if got.Partial {
		said = append(said, "the answer is partial")
	}
	return strings.Join(said, "; ")
}

// numbers reads the answer, and what the server warns of with it. Prometheus explains an error in JSON, with a status of its own.
func (r *request) numbers(out reply) (result []float64, warning string, err error) {
	var got measured
	err = json.Unmarshal(out.body, &got)
	switch {
	case err == nil && got.Status == "error":
		return nil, "", fmt.Errorf("%s: %s: %s", r.name(), r.said([]byte(got.ErrorType)), r.said([]byte(got.Error)))
	case out.code != http.StatusOK:
		return nil, "", errors.New(r.status(out))
	case err != nil || got.Status != "success":
		return nil, "", fmt.Errorf("%s: does not answer as Prometheus does%s", r.name(), colon(r.said(out.body)))
	}
	if result, err = got.numbers(); err != nil {
		return nil, "", fmt.Errorf("%s: %s", r.name(), r.said([]byte(err.Error())))
	}
	return result, r.said([]byte(got.warning())), nil
}

func (got *measured) numbers() ([]float64, error) {
	switch got.Data.ResultType {
	case "scalar":
		x, err := sample(got.Data.Result)
		if err != nil {
			return nil, err
		}
		return []float64{x}, nil
	case "vector":
		return vector(got.Data.Result)
	case "matrix":
		return nil, errors.New("the query gives a range; write one that gives a number, as with rate() or avg_over_time()")
	}
	return nil, fmt.Errorf("the query gives a %q; write one that gives numbers", excerpt([]byte(got.Data.ResultType)))
}

func vector(raw json.RawMessage) ([]float64, error) {
	var series []struct {
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(raw, &series); err != nil {
		return nil, errors.New("the vector in the answer is malformed")
	}
	if len(series) > maxSeries {
		return nil, fmt.Errorf("the query gives %d series; at most %d: aggregate them, as with sum() or max()", len(series), maxSeries)
	}
	out := make([]float64, 0, len(series))
	for _, s := range series {
		if s.Value == nil {
			return nil, errors.New("the query gives a histogram; write one that gives a number, as with histogram_quantile()")
		}
		x, err := sample(s.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// sample reads [time, "value"].
func sample(raw json.RawMessage) (float64, error) {
	var pair []json.RawMessage
	var text string
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 || json.Unmarshal(pair[1], &text) != nil {
		return 0, errors.New("a sample in the answer is malformed")
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("a sample in the answer is no number: %q", excerpt([]byte(text)))
	}
	return x, nil
}
