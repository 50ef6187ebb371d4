package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// Of several rollouts the worst decides the exit code, whichever is followed first: a script that lets pass what waits for a person, or what a
// newer apply took over, is told of one that has failed beside it.
func TestExitCodeOfSeveralRollouts(t *testing.T) {
	const failed = "Failed"
	some := func(s *v1.RolloutStatus) { s.Total, s.Succeeded = 3, 3 }
	prunes := &v1.Hold{Id: "h-1", Kind: "Confirm"}
	for name, tc := range map[string]struct {
		shop, base *v1.Rollout
		holds      []*v1.Hold
		more       string
		code       int
	}{
		"what one drops waits":  {ended("Succeeded", some), ended(failed, some), []*v1.Hold{prunes}, "", exitFailed},
		"one waits":             {waitingFor(rollout.ReasonApproval), ended(failed, some), nil, " --fail-on-wait", exitFailed},
		"one is superseded":     {ended("Superseded", some), ended(failed, some), nil, "", exitFailed},
		"one is not done":       {surfaceRollout(), ended(failed, some), nil, " --timeout 1ns", exitFailed},
		"one waits, one is old": {waitingFor(rollout.ReasonApproval), ended("Superseded", some), nil, " --fail-on-wait", exitWaits},
		"one waits, one is not": {waitingFor(rollout.ReasonApproval), ended("Succeeded", some), nil, " --fail-on-wait", exitWaits},
	} {
		t.Run(name, func(t *testing.T) {
			for _, files := range []string{shopYAML + "---\n" + strings.ReplaceAll(shopYAML, "name: shop", "name: base"), strings.ReplaceAll(shopYAML, "name: shop", "name: base") + "---\n" + shopYAML} {
				hub := &fakeHub{put: putAnswer(), holds: tc.holds, watches: map[string][]*v1.WatchRolloutResponse{"shop": watching(tc.shop), "base": watching(tc.base)}}
				hub.put.Rollout = ""
				got := hub.run(t, run{stdin: files}, strings.Fields("apply -f - --wait"+tc.more)...)
				if got.code != tc.code || strings.Contains(got.err, "exit ") {
					t.Errorf("exit %d, want %d, stdout %q, stderr %q", got.code, tc.code, got.out, got.err)
				}
			}
		})
	}
}

func TestWorstExitCode(t *testing.T) {
	plain := errors.New("no")
	late := fmt.Errorf("put: %w", context.DeadlineExceeded)
	coded := func(code int) error { return &exitError{code, plain} }
	silent := func(code int) error { return &exitError{code, nil} }
	for name, tc := range map[string]struct {
		errs []error
		code int
	}{
		"none":                       {nil, exitOK},
		"a plain one behind one":     {[]error{coded(exitTimedOut), plain}, exitFailed},
		"a plain one before one":     {[]error{plain, coded(exitWaits)}, exitFailed},
		"what one has led to":        {[]error{coded(exitTimedOut), becausef("the rest is not done")}, exitTimedOut},
		"nothing but that":           {[]error{becausef("the rest is not done"), becausef("nor this")}, exitFailed},
		"silent ones":                {[]error{silent(exitSuperseded), silent(exitFailed), silent(exitWaits)}, exitFailed},
		"a silent one behind one":    {[]error{coded(exitWaits), silent(exitFailed)}, exitFailed},
		"a silent one that is less":  {[]error{coded(exitTimedOut), silent(exitWaits)}, exitTimedOut},
		"several in one of several":  {[]error{joined(coded(exitWaits), plain), silent(exitSuperseded)}, exitFailed},
		"what took too long":         {[]error{late, becausef("the rest is not done")}, exitTimedOut},
		"wrong use, and late":        {[]error{late, usagef("no")}, exitUsage},
		"joined once, and once more": {[]error{joinCodes([]error{coded(exitWaits), silent(exitFailed)}), coded(exitTimedOut)}, exitFailed},
	} {
		if got := codeOf(joinCodes(tc.errs)); got != tc.code {
			t.Errorf("%s: %d, want %d", name, got, tc.code)
		}
	}
}
