package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

func (h *fakeHub) ListSecrets(_ context.Context, r *v1.ListSecretsRequest) (*v1.ListSecretsResponse, error) {
	h.note(r)
	resp := &v1.ListSecretsResponse{}
	for _, s := range h.secrets {
		if r.GetProject() == "" || r.GetProject() == s.GetMetadata().GetProject() {
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
		if s.GetMetadata().GetName() == r.GetName() && s.GetMetadata().GetProject() == r.GetProject() {
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
		"with its project":    {words: []string{"team/repo", "a=canary", "--replace"}, want: `team/repo map[a:canary] [] replace`},
		"no file":             {words: []string{"repo", "a=@/nowhere/x"}, err: "secret set: a: open /nowhere/x: no such file or directory"},
		"stdin has nothing":   {words: []string{"repo", "a=-"}, err: "secret set: a: nothing was read; for an empty value write a="},
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
			if got.code != exitOK || said != tc.want || !strings.HasSuffix(got.out, "repo configured\n") {
				t.Errorf("exit %d, %s, sent %s, want %s\n%s", got.code, got.out, said, tc.want, got.err)
			}
		})
	}
}

// TestSecretDelete: it is said who uses a secret before it goes.
func TestSecretDelete(t *testing.T) {
	hub := fullHub()
	if got := hub.run(t, run{}, "delete", "secret", "repo"); got.code != exitUsage || !strings.Contains(got.err, "delete secret repo: 1 module uses it and cannot be fetched without it: shop; say --yes") {
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
