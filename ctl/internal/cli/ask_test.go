package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
)

// Who sits at a terminal is asked before what is not taken back, wherever the output goes, and the question says of which hub: in the other one there may
// be something of the same name. A program, which has no terminal, is not asked.
func TestWhoSitsAtATerminalIsAsked(t *testing.T) {
	released := func(h *fakeHub) proto.Message { return asked[*v1.ConfirmHoldRequest](h) }
	revoked := func(h *fakeHub) proto.Message { return asked[*v1.RevokeClusterRequest](h) }
	ended := func(h *fakeHub) proto.Message { return asked[*v1.RevokeCertificateRequest](h) }
	for command, tc := range map[string]struct {
		done     func(*fakeHub) proto.Message
		question string
	}{
		"confirm prune-1":           {released, "Confirm prune-1 (hub hub.test:7444)\nGo on? [y/N] "},
		"cluster revoke prod-eu-01": {revoked, "Revoke cluster prod-eu-01 (hub hub.test:7444): its agent writes nothing any more, corrections of drift included\nGo on? [y/N] "},
		"certificate revoke ab":     {ended, "Revoke certificate ab (hub hub.test:7444): who has it is locked out, be it you; on the hub, towline-hub admin-cert makes another one\nGo on? [y/N] "},
	} {
		for name, at := range map[string]struct {
			run
			more       string
			asks, does bool
		}{
			"at a terminal, no":       {run{terminal: true, stdin: "n\n"}, "", true, false},
			"at a terminal, yes":      {run{terminal: true, stdin: "y\n"}, "", true, true},
			"the output is piped, no": {run{terminal: true, piped: true, stdin: "\n"}, "", true, false},
			"the output is piped":     {run{terminal: true, piped: true, stdin: "yes\n"}, "", true, true},
			"piped, and --yes":        {run{terminal: true, piped: true}, " --yes", false, true},
			"a program":               {run{}, "", false, true},
		} {
			hub := fullHub()
			hub.holds = []*v1.Hold{{Id: "prune-1", Kind: "Confirm", Digest: "d"}}
			got := hub.run(t, at.run, strings.Fields(command+at.more)...)
			does := tc.done(hub).ProtoReflect().IsValid()
			if does != at.does || strings.Contains(got.err, tc.question) != at.asks || (got.code == exitOK) != at.does {
				t.Errorf("%s, %s: done %t, exit %d, stderr %q", command, name, does, got.code, got.err)
			}
		}
	}
}

// What is revoked is the cluster that was looked at, and nobody is asked about one that is not there.
func TestRevokedIsWhatWasLookedAt(t *testing.T) {
	hub := fullHub()
	hub.clusters = append(hub.clusters, &v1.Cluster{Metadata: &v1.Metadata{Name: "c1", Uid: "u-c1"}})
	hub.run(t, run{}, "cluster", "revoke", "c1")
	if r := asked[*v1.RevokeClusterRequest](hub); r.GetUid() != "u-c1" {
		t.Errorf("the hub was asked %v", r)
	}
	hub = fullHub()
	got := hub.run(t, run{terminal: true, stdin: "y\n"}, "cluster", "revoke", "none")
	if r := asked[*v1.RevokeClusterRequest](hub); r != nil || strings.Contains(got.err, "Go on?") || !strings.Contains(got.err, "cluster none: there is none") {
		t.Errorf("exit %d, stderr %q, the hub was asked %v", got.code, got.err, r)
	}
}

// A name that says its project is refused where -p says another one: one of the two is wrong, and what is in the other would go for that.
func TestNameOfAnotherProjectThanAsked(t *testing.T) {
	for _, command := range []string{"delete module default/shop --yes", "delete module/default/shop --yes", "rollout abort default/shop", "rollout abort default/shop/57", "rollout wait default/shop/57",
		"hold module/default/shop", "resync module default/shop", "secret delete default/repo --yes", "secret set default/repo a=b", "get module default/shop", "delete catalog default/team --yes"} {
		hub := fullHub()
		got := hub.run(t, run{}, append(strings.Fields(command), "-p", "team")...)
		if got.code != exitUsage || !strings.Contains(got.err, "is of project default, not of team as -p says") || len(hub.requests) > 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; the hub was asked %v", command, got.code, got.out, got.err, hub.requests)
		}
	}
	for _, command := range []string{"get module team/base -p team", "get module team/base", "confirm h-7 -p team"} {
		hub := fullHub()
		hub.holds = []*v1.Hold{{Id: "h-7", Kind: "Confirm", Project: "default", Module: "shop"}} // an id is of no project
		if got := hub.run(t, run{}, strings.Fields(command)...); strings.Contains(got.err, "as -p says") {
			t.Errorf("%s: exit %d, stderr %q", command, got.code, got.err)
		}
	}
}
