package cli

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// watched is get -w on modules base and shop; shop changes and base goes.
func watched(t *testing.T, args ...string) result {
	t.Helper()
	all := surfaceModules()
	hub := &fakeHub{modules: []*v1.Module{all[0], all[3]}}
	changed := proto.Clone(all[3]).(*v1.Module)
	changed.Status.Healthy, changed.Status.Progressing = 296, 0
	hub.changes = []*v1.WatchModulesResponse{{Type: client.Modified, Module: changed}, {Type: client.Deleted, Module: all[0]}}
	hub.watchEnds = fleet.Errorf(fleet.ErrDenied, "watched enough")
	return hub.run(t, run{}, append([]string{"get", "modules", "-w"}, args...)...)
}

func TestWatchAppendsRowsUnderTheSameHeaders(t *testing.T) {
	same(t, watched(t).out, `
NAME  REVISION   CLUSTERS  UPDATED  HEALTHY  PROGR  BAD  AWAY  DRIFT  ROLLOUT                          SINCE
base  r17             300      297      297      0    0     3      1  Succeeded, 3 deferred            2d
shop  r41 → r42       300        3      295      1    1     3      3  Progressing shop/57: canary 1/2  6m12s
shop  r41 → r42       300        3      296      0    1     3      3  Progressing shop/57: canary 1/2  6m12s
base  r17             300      297      297      0    0     3      1  Succeeded, 3 deferred            2d (deleted)
`)
}

// TestWatchOfModulesInTwoProjects: each that is named is followed, and no other one of its name.
func TestWatchOfModulesInTwoProjects(t *testing.T) {
	all := surfaceModules()
	hub := &fakeHub{modules: all, watchEnds: fleet.Errorf(fleet.ErrDenied, "watched enough")}
	for _, name := range []string{"base", "shop", "web"} {
		m := proto.Clone(all[0]).(*v1.Module)
		m.Metadata.Project, m.Metadata.Name = "team", name
		hub.modules = append(hub.modules, m)
	}
	for args, want := range map[string]string{
		"shop team/base":       "module/shop module/team/base",
		"team/base shop":       "module/shop module/team/base",
		"base team/base":       "module/base module/team/base",
		"team/web team/base":   "module/team/base module/team/web",
		"team/shop":            "module/team/shop",
		"shop shop":            "module/shop",
		"shop base -p default": "module/base module/shop",
	} {
		got := hub.run(t, run{}, append(strings.Fields("get modules -w -o name"), strings.Fields(args)...)...).out
		if names := strings.Join(slices.Sorted(slices.Values(strings.Fields(got))), " "); names != want {
			t.Errorf("get modules -w %s: %q, want %q", args, names, want)
		}
	}
}

func TestWatchForPrograms(t *testing.T) {
	if got := watched(t, "-o", "name").out; got != "module/base\nmodule/shop\nmodule/shop\nmodule/base\n" {
		t.Errorf("names: %q", got)
	}
	lines := strings.Split(strings.TrimSpace(watched(t, "-o", "json").out), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[3], `{"type":"DELETED","object":{"apiVersion":"towline.dev/v1","kind":"Module","metadata":{"name":"base"`) {
		t.Errorf("JSON is not one change a line: %q", lines)
	}
	if got := watched(t, "shop", "-o", "jsonpath={.status.healthy}").out; got != "295\n296\n" {
		t.Errorf("one module by JSONPath: %q", got)
	}
}

// TestWatchOfNoSuchName: a wrong name is said at once, as without -w, and not waited for.
func TestWatchOfNoSuchName(t *testing.T) {
	hub := fullHub()
	hub.watchEnds = fleet.Errorf(fleet.ErrDenied, "watched on")
	for args, want := range map[string]string{
		"get module shpo -w":                       "module shpo: there is none in project default",
		"get module shop shpo -w -o json":          "module shpo: there is none in project default",
		"get module/shpo -w -o name":               "module shpo: there is none in project default",
		"get cluster prod-eu-7 -w":                 "cluster prod-eu-7: there is none",
		"get clusters prod-eu-01 prod-eu-7 -w":     "cluster prod-eu-7: there is none",
		"get objects webb -w":                      "object webb: there is none of that name in project default",
		"get objects webb":                         "object webb: there is none of that name in project default",
		"get objects web --module shpo -w":         "watched on", // an object was there: what selects it exists
		"get objects webb --module shpo -w":        "module shpo: there is none in project default",
		"get objects webb --drift --module shop":   "No objects in project default drift now",
		"get objects webb --health Degraded -w":    "watched on",
		"get objects --cluster prod-eu-7 webb -w":  "cluster prod-eu-7: there is none",
		"get objects webb -A --module shpo -w":     "module shpo: there is none in any project",
		"get objects -A --module shpo --name webb": "module shpo: there is none in any project",
		"get objects -A --module shop --name webb": "No objects",
		"get module shop -w":                       "watched on",
		"get cluster prod-eu-01 -w":                "watched on",
	} {
		got := hub.run(t, run{}, strings.Fields(args)...)
		if !strings.Contains(got.err, want) || (got.code == exitOK) != strings.HasPrefix(want, "No objects") {
			t.Errorf("towline %s: exit %d, %q; want %q", args, got.code, got.err, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	hub := fullHub()
	for args, want := range map[string]string{
		"get module ": "base edge-lb payments shop", "get cluster/": "cluster/edge-112 cluster/edge-113 cluster/prod-eu-01 cluster/prod-eu-11",
		"rollout approve ": "base edge-lb payments shop", "confirm ": "h-7 freeze-1", "cluster cordon ": "edge-112 edge-113 prod-eu-01 prod-eu-11",
		"get -p ": "default", "user delete ": "maria ci", "get pods ": "",
	} {
		words := append([]string{"__complete"}, strings.Fields(args)...)
		if strings.HasSuffix(args, " ") {
			words = append(words, "")
		}
		got := strings.Fields(strings.Split(hub.run(t, run{}, words...).out, ":4")[0])
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	away := func(ctx context.Context, _ client.Options) (*client.Client, error) {
		<-ctx.Done() // a hub that does not answer
		return nil, ctx.Err()
	}
	if got := execute(t.Context(), run{}, away, "__complete", "get", "module", ""); got.code != 0 || strings.TrimSpace(got.out) != ":4" {
		t.Errorf("without a hub: exit %d, %q", got.code, got.out)
	}
}

func TestConfigCommands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	for _, c := range []clientconfig.Context{{Name: "local", Server: "127.0.0.1:7444", CAData: []byte("ca"), KeyData: []byte("secret-key")}, {Name: "prod", Server: "hub:7444", Token: "secret-token"}} {
		if err := clientconfig.Merge(path, c); err != nil {
			t.Fatal(err)
		}
	}
	hub := fullHub()
	same(t, hub.run(t, run{}, "config", "view", "--config", path).out, `
apiVersion: towline.dev/v1
contexts:
- caData: OMITTED
  keyData: REDACTED
  name: local
  server: 127.0.0.1:7444
- name: prod
  server: hub:7444
  token: REDACTED
currentContext: local
kind: Config
`)
	if got := hub.run(t, run{}, "config", "use-context", "prod", "--config", path); got.code != 0 || got.out != "context prod is current\n" {
		t.Errorf("exit %d, %q %q", got.code, got.out, got.err)
	}
	if c, err := clientconfig.Load(path); err != nil || c.CurrentContext != "prod" {
		t.Errorf("the file says %v, %v", c, err)
	}
	if got := hub.run(t, run{}, "config", "use-context", "nosuch", "--config", path); got.code != 1 || !strings.Contains(got.err, `no context "nosuch"`) {
		t.Errorf("exit %d, %q", got.code, got.err)
	}
	if got := hub.run(t, run{}, "user", "create", "ana", "--role", "viewer", "--save", path, "--config", path); got.code != 0 || strings.Contains(got.out, "tl_secret") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if c, err := clientconfig.Load(path); err != nil {
		t.Error(err)
	} else if ana, err := c.Context("ana"); err != nil || ana.Token != "tl_secret" || ana.Server != "hub:7444" {
		t.Errorf("the context that was saved: %+v, %v", ana, err)
	}
}

// `config use` merges what a hub wrote; a second hub, whose context has the same name, does not displace the first.
func TestConfigUseMerges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mine", "config")
	write := func(file, server, ca string) string {
		p := filepath.Join(dir, file)
		if err := clientconfig.New(clientconfig.Context{Name: "local", Server: server, CAData: []byte(ca)}).Save(p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, second := write("first.yaml", "127.0.0.1:7444", "ca 1"), write("second.yaml", "127.0.0.1:8444", "ca 2")
	hub := fullHub()
	for _, tc := range []struct {
		args     []string
		code     int
		out, err string
	}{
		{[]string{first}, 0, "context local (127.0.0.1:7444) is current in " + path + "\n", ""},
		{[]string{second}, 1, "", "its context local is that of another hub (127.0.0.1:7444); merge with another name: --name NAME"},
		{[]string{second, "--name", "two"}, 0, "context two (127.0.0.1:8444) is current in " + path + "\n", ""},
		{[]string{write("moved.yaml", "127.0.0.1:7555", "ca 1")}, 0, "context local (127.0.0.1:7555) is current in " + path + "\n", ""},
		{[]string{path}, 1, "", "is the client configuration in use already"},
		{[]string{filepath.Join(dir, "none")}, 1, "", "no client configuration there"},
	} {
		got := hub.run(t, run{}, append([]string{"config", "use", "--config", path}, tc.args...)...)
		if got.code != tc.code || got.out != tc.out || !strings.Contains(got.err, tc.err) {
			t.Errorf("config use %v: exit %d, %q, %q", tc.args, got.code, got.out, got.err)
		}
	}
	c, err := clientconfig.Load(path)
	if err != nil || c.CurrentContext != "local" || len(c.Contexts) != 2 || c.Contexts[0].Server != "127.0.0.1:7555" || c.Contexts[1].Name != "two" {
		t.Errorf("the file says %+v, %v", c, err)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[string]string{"-5s": "0s", "42s": "42s", "62s": "1m02s", "6m": "6m", "6m12s": "6m12s", "41m10s": "41m", "3h": "3h",
		"3h5m": "3h05m", "30h": "30h", "49h": "2d"} {
		if got := span(duration(t, d)); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestBar: the parts never overflow, and what is there at all is seen.
func TestBar(t *testing.T) {
	for _, tc := range []struct {
		s     *v1.StageStatus
		width int
		want  string
	}{
		{&v1.StageStatus{Total: 6, Done: 3, Running: 1, Failed: 1, Deferred: 1}, 6, "[###=x-]"},
		{&v1.StageStatus{Total: 294}, 6, "[......]"},
		{&v1.StageStatus{Total: 300, Done: 1, Running: 1, Failed: 1, Deferred: 1}, 6, "[#=x-..]"},
		{&v1.StageStatus{Total: 300, Done: 298, Running: 1, Failed: 1}, 6, "[#####=]"},
		{&v1.StageStatus{}, 6, "[......]"},
		{&v1.StageStatus{Total: 2, Done: 2}, 24, "[########################]"},
	} {
		if got := bar(tc.s, tc.width); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.s, got, tc.want)
		}
	}
}
