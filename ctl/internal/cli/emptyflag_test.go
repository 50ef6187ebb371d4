package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

// TestEmptyFlagWidensNothing: a flag that a script gives with nothing in it is refused before the hub is asked, for left out it may mean all clusters,
// all projects, another hub, or no end.
func TestEmptyFlagWidensNothing(t *testing.T) {
	file := write(t, "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {namespace: default, placement: {selector: {}}, source: {inline: {files: {a.yaml: a}}}}\n")
	for _, tc := range []struct{ args, flag string }{
		{"apply -f " + file + " --set carts --prune --yes -p ", "project"},
		{"restore accept --yes --cluster ", "cluster"},
		{"secret set db password=x --cluster ", "cluster"},
		{"secret delete db --yes -l ", "selector"},
		{"hold module/shop --cluster ", "cluster"},
		{"hold module/shop --until ", "until"},
		{"unhold module/shop --cluster ", "cluster"},
		{"rollout approve shop --revision ", "revision"},
		{"rollout retry shop --cluster ", "cluster"},
		{"rollout rollback shop --to-revision ", "to-revision"},
		{"delete module shop --yes --use-context ", "use-context"},
		{"delete module shop --yes --config ", "config"},
		{"cluster join a --context ", "context"},
		{"user create ci --role viewer --save ", "save"},
	} {
		hub := fullHub()
		got := hub.run(t, run{}, append(strings.Fields(tc.args), "")...)
		if got.code != exitUsage || !strings.Contains(got.err, "--"+tc.flag+" is there, and empty") || len(hub.requests) > 0 {
			t.Errorf("%s: exit %d, %q; the hub was asked %v", tc.args, got.code, got.err, hub.requests)
		}
	}
	hub := fullHub()
	if got := hub.run(t, run{}, "get", "modules", "-m", ""); strings.Contains(got.err, "is there, and empty") {
		t.Errorf("%q", got.err)
	}
}

// TestContextOfAnotherHubIsKept: the token of a user is not put in the place of that of another hub, and nobody is made before that is known.
func TestContextOfAnotherHubIsKept(t *testing.T) {
	mine := write(t, "apiVersion: towline.dev/v1\nkind: Config\ncurrentContext: local\ncontexts:\n- {name: local, server: hub:7444, token: t, caData: YQ==}\n")
	theirs := write(t, "apiVersion: towline.dev/v1\nkind: Config\ncurrentContext: ci\ncontexts:\n- {name: ci, server: other:7444, token: kept, caData: Yg==}\n")
	hub := fullHub()
	got := hub.run(t, run{}, "user", "create", "ci", "--role", "viewer", "--save", theirs, "--config", mine)
	if got.code == exitOK || !strings.Contains(got.err, "its context ci is that of another hub (other:7444)") || asked[*v1.CreateUserRequest](hub) != nil {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}
