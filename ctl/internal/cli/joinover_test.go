package cli

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// TestJoinLooksAtTheAgentThatIsThere: who joins a cluster anew does not give its agent more rights than it had, and does not take over the agent of
// another hub or another cluster, unless that is said. Nothing is made and nothing is applied then.
func TestJoinLooksAtTheAgentThatIsThere(t *testing.T) {
	const before, same = "prod-eu-01 --hub hub-a:7443", "prod-eu-01 --hub hub-a:7443"
	for name, tc := range map[string]struct{ before, now, says string }{
		"nothing is there":         {"", same, ""},
		"the same":                 {before, same, ""},
		"the same, restricted":     {before + " --restricted", same + " --restricted", ""},
		"the same, a DaemonSet":    {before + " --daemonset", same + " --daemonset", ""},
		"fewer rights":             {before, same + " --restricted", ""},
		"one more address":         {before, same + " --hub hub-c:7443", ""},
		"more rights":              {before + " --restricted", same, "few rights"},
		"another hub":              {before, "prod-eu-01 --hub hub-b:7443", "hub-a:7443"},
		"another hub's DaemonSet":  {before + " --daemonset", "prod-eu-01 --hub hub-b:7443", "hub-a:7443"},
		"another cluster":          {before, "edge-112 --hub hub-a:7443", "cluster prod-eu-01"},
		"more rights, said":        {before + " --restricted", same + " --replace", ""},
		"another hub, said":        {before, "prod-eu-01 --hub hub-b:7443 --replace", ""},
		"another cluster, as said": {before, "prod-eu-11 --hub hub-a:7443 --replace", ""},
	} {
		t.Run(name, func(t *testing.T) {
			api := &kubeAPI{}
			server := httptest.NewServer(api)
			defer server.Close()
			join := func(words string) (result, *fakeHub) {
				args := strings.Fields(words)
				hub := fullHub()
				token := jointoken.New(fleet.ClusterName(args[0]), [32]byte{})
				hub.join.Token = token.String()
				hub.tokens = []*v1.Token{{Metadata: &v1.Metadata{Name: token.ID}, State: "Used"}}
				return hub.run(t, run{}, slices.Concat([]string{"cluster", "join"}, args, []string{"--reissue", "--context", "edge", "--kubeconfig", kubeconfig(t, server.URL)})...), hub
			}
			if tc.before != "" {
				if got, _ := join(tc.before); got.code != 0 {
					t.Fatalf("exit %d, %s", got.code, got.err)
				}
			}
			applied := len(api.applied)
			got, hub := join(tc.now)
			if tc.says == "" {
				if got.code != 0 || len(api.applied) == applied {
					t.Errorf("exit %d, stderr %q", got.code, got.err)
				}
				return
			}
			if got.code != 1 || !strings.Contains(got.err, tc.says) || !strings.Contains(got.err, "--replace") {
				t.Errorf("exit %d, stdout %q, stderr %q lacks %q", got.code, got.out, got.err, tc.says)
			}
			if asked[*v1.JoinClusterRequest](hub) != nil || len(api.applied) != applied {
				t.Errorf("a token was made, or applied: %q", api.applied[applied:])
			}
		})
	}
}
