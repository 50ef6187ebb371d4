package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

func (h *fakeHub) ListSecrets(_ context.Context, r *v1.ListSecretsRequest) (*v1.ListSecretsResponse, error) {
	h.note(r)
	resp := &v1.ListSecretsResponse{}
	for _, s := range h.secrets {
		if (r.GetProject() == "" || r.GetProject() == s.GetMetadata().GetProject()) && (r.GetName() == "" || r.GetName() == s.GetMetadata().GetName()) {
			resp.Secrets = append(resp.Secrets, s)
		}
	}
	if r.GetTotal() {
		resp.Total = int32(len(resp.GetSecrets()))
	}
	return resp, nil
}

func (h *fakeHub) GetSecret(_ context.Context, r *v1.GetSecretRequest) (*v1.GetSecretResponse, error) {
	for _, s := range h.secrets {
		if s.GetMetadata().GetName() == r.GetName() && s.GetMetadata().GetProject() == r.GetProject() && proto.Equal(s.GetScope(), r.GetScope()) {
			return &v1.GetSecretResponse{Secret: s}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "secret %s is not there", r.GetName()))
}

func (h *fakeHub) SetSecret(_ context.Context, r *v1.SetSecretRequest) (*v1.SetSecretResponse, error) {
	h.note(r)
	return &v1.SetSecretResponse{Result: "configured", Secret: &v1.Secret{UsedBy: []string{"shop"}}}, nil
}

func (h *fakeHub) DeleteSecret(_ context.Context, r *v1.DeleteSecretRequest) (*v1.DeleteSecretResponse, error) {
	h.note(r)
	return &v1.DeleteSecretResponse{}, nil
}

// TestSecretSet: what each form of a word sends, and that no answer shows a value.
func TestSecretSet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(file, []byte("canary-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		words []string
		stdin string
		want  string // of the request
		err   string
	}{
		"a value":             {words: []string{"repo", "token=canary-a=b"}, want: `default/repo map[token:canary-a=b] []`},
		"an empty one":        {words: []string{"repo", "password="}, want: `default/repo map[password:] []`},
		"a file":              {words: []string{"repo", "identity=@" + file}, want: "default/repo map[identity:canary-file\n] []"},
		"stdin":               {words: []string{"repo", "token=-"}, stdin: "canary-in\r\n", want: `default/repo map[token:canary-in] []`},
		"lines on stdin":      {words: []string{"repo", "token=-"}, stdin: "canary-1\ncanary-2\n\n", want: "default/repo map[token:canary-1\ncanary-2\n] []"},
		"one goes":            {words: []string{"repo", "old-", "new=canary"}, want: `default/repo map[new:canary] [old]`},
		"another project":     {words: []string{"secret/repo", "-p", "team", "a=canary"}, want: `team/repo map[a:canary] []`},
		"for a cluster":       {words: []string{"db", "a=canary", "--cluster", "eu-1"}, want: `default/db map[a:canary] [] for --cluster eu-1`},
		"for labels":          {words: []string{"db", "a=canary", "-l", "env==prod"}, want: `default/db map[a:canary] [] for -l env=prod`},
		"for both":            {words: []string{"db", "a=canary", "-l", "env=prod", "--cluster", "eu-1"}, err: "--cluster and -l: has a cluster and a label selector: give one of them"},
		"for what is none":    {words: []string{"db", "a=canary", "-l", "env in prod"}, err: "-l: \"env in prod\""},
		"with its project":    {words: []string{"team/repo", "a=canary", "--replace"}, want: `team/repo map[a:canary] [] replace`},
		"no file":             {words: []string{"repo", "a=@/nowhere/x"}, err: "secret set: a: open /nowhere/x: no such file or directory"},
		"stdin has nothing":   {words: []string{"repo", "a=-"}, err: "secret set: a: nothing was read; for an empty value write a="},
		"a file has nothing":  {words: []string{"repo", "a=@" + empty}, err: "secret set: a: nothing was read; for an empty value write a="},
		"stdin twice":         {words: []string{"repo", "a=-", "b=-"}, stdin: "canary", err: "a and b are both to be read from stdin"},
		"a key twice":         {words: []string{"repo", "a=canary", "a=canary"}, err: "a is given twice"},
		"no key":              {words: []string{"repo", "=canary"}, err: "word 1 after the name is none of KEY=VALUE, KEY=-, KEY=@FILE and KEY-"},
		"a value without one": {words: []string{"repo", "a=canary", "canary"}, err: "word 2 after the name is none of KEY=VALUE"},
		"nothing":             {words: []string{"repo"}, err: "towline secret set takes a name and at least one KEY=VALUE"},
		"what is no name":     {words: []string{"Repo", "a=canary"}, err: "is no DNS label"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			got := hub.run(t, run{stdin: tc.stdin}, append([]string{"secret", "set"}, tc.words...)...)
			if strings.Contains(got.out+got.err, "canary") {
				t.Errorf("a value is shown: %s%s", got.out, got.err)
			}
			req := asked[*v1.SetSecretRequest](hub)
			if tc.err != "" {
				if got.code == exitOK || !strings.Contains(got.err, tc.err) || req != nil {
					t.Errorf("exit %d: %s, want %s", got.code, got.err, tc.err)
				}
				return
			}
			values := map[string]string{}
			for k, v := range req.GetValues() {
				values[k] = string(v)
			}
			said := fmt.Sprintf("%s/%s %v %v", req.GetProject(), req.GetName(), values, req.GetRemove())
			if req.GetReplace() {
				said += " replace"
			}
			if req.GetScope() != nil {
				said += " for " + scopeSays(req.GetScope())
			}
			if got.code != exitOK || said != tc.want || !strings.HasSuffix(got.out, " configured\n") {
				t.Errorf("exit %d, %s, sent %s, want %s\n%s", got.code, got.out, said, tc.want, got.err)
			}
		})
	}
}

// TestSecretDelete: it is said who uses a secret before it goes.
func TestSecretDelete(t *testing.T) {
	hub := fullHub()
	if got := hub.run(t, run{}, "delete", "secret", "repo"); got.code != exitUsage || !strings.Contains(got.err, "delete secret repo (hub hub.test:7444): 1 module uses it, whose source cannot be fetched, or whose binding has no value, where no other secret of the name is: shop; say --yes") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
	if got := hub.run(t, run{}, "delete", "secret", "repo", "--yes", "-m", "gone"); got.code != exitOK || got.out != "secret/repo deleted\n" {
		t.Errorf("exit %d: %s%s", got.code, got.out, got.err)
	}
	if r := asked[*v1.DeleteSecretRequest](hub); !r.GetUsed() || r.GetUid() != "u-1" || r.GetReason() != "gone" {
		t.Errorf("asked %v", r)
	}
	if got := hub.run(t, run{}, "delete", "secret", "none", "--yes"); got.code != exitFailed || !strings.Contains(got.err, "secret none is not there") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
}

// TestScopedSecretsAreShownAndDeleted: of a name all are shown, each with the clusters that it is for, and the one is deleted that the flags
// name, by both forms of the command.
func TestScopedSecretsAreShownAndDeleted(t *testing.T) {
	hub := fullHub()
	scoped := func(scope *v1.SecretScope, uid string, users ...string) *v1.Secret {
		return &v1.Secret{Kind: "Secret", Metadata: &v1.Metadata{Name: "db", Project: "default", Uid: uid, CreationTimestamp: ago(day), ChangedBy: "ana"},
			Keys: []string{"password"}, State: "Readable", Scope: scope, UsedBy: users}
	}
	hub.secrets = append(hub.secrets, scoped(nil, "u-all"), scoped(&v1.SecretScope{Cluster: "eu-1"}, "u-eu"), scoped(&v1.SecretScope{LabelSelector: "env=prod"}, "u-prod"))
	for _, words := range [][]string{{"secret", "list", "db"}, {"secret", "get", "db"}, {"get", "secret", "db"}} {
		got := hub.run(t, run{}, words...)
		lines := strings.Split(strings.TrimSpace(got.out), "\n")
		if got.code != exitOK || len(lines) != 4 || !strings.HasPrefix(lines[0], "NAME  SCOPE           KEYS") ||
			!strings.HasPrefix(lines[1], "db    -  ") || !strings.HasPrefix(lines[2], "db    --cluster eu-1  password") || !strings.HasPrefix(lines[3], "db    -l env=prod     password") {
			t.Errorf("%v: exit %d\n%s%s", words, got.code, got.out, got.err)
		}
	}
	if got := hub.run(t, run{}, "get", "secret", "db", "-o", "json"); !strings.Contains(got.out, `"items"`) || !strings.Contains(got.out, `"labelSelector": "env=prod"`) {
		t.Errorf("%s%s", got.out, got.err)
	}
	if got := hub.run(t, run{}, "describe", "secret", "db"); strings.Count(got.out, "Clusters:") != 3 || !strings.Contains(got.out, "--cluster eu-1") {
		t.Errorf("%s%s", got.out, got.err)
	}
	for uid, words := range map[string][]string{"u-eu": {"secret", "delete", "db", "--cluster", "eu-1", "--yes"}, "u-prod": {"delete", "secret", "db", "-l", "env==prod", "--yes"}} {
		got := hub.run(t, run{}, words...)
		if r := asked[*v1.DeleteSecretRequest](hub); got.code != exitOK || r.GetUid() != uid || !strings.HasPrefix(got.out, "secret/db -") {
			t.Errorf("%v: exit %d, asked %v\n%s%s", words, got.code, r, got.out, got.err)
		}
	}
	if got := hub.run(t, run{}, "delete", "module", "shop", "--cluster", "eu-1", "--yes"); got.code != exitUsage || !strings.Contains(got.err, "--cluster and -l are for secrets") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
}
