// Package canaries plants secrets in every way in which people have them, lets happen what happens to modules, and then reads all that can be
// read: none of them is where it does not belong. docs/secrets.md says where they belong. It runs only with TOWLINE_E2E set.
package canaries

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/client"
	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// limit is how long anything may take that is expected to happen.
const limit = 2 * time.Minute

func base64Of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is the lab, with who looks at it.
type world struct {
	*lab.Lab
	t              *testing.T
	seen           places
	metrics, hooks string
	admin, eve     *client.Client
	eveConfig      string
	passwords      map[string]string // what was handed out: join tokens and the like
}

// TestNoCanaryIsSeen is the whole of it.
func TestNoCanaryIsSeen(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	w := start(t)
	server := serveSources(t)
	w.plant(server)
	w.happens(server)
	w.read("while an object is held", others(server))
	w.ends()
	w.read("at the end", others(server))
	w.stops()
	w.judge()
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, seen: places{}, passwords: map[string]string{}}
	var err error
	w.metrics, err = lab.FreeAddress()
	must(t, err)
	w.hooks, err = lab.FreeAddress()
	must(t, err)
	w.Lab = e2etest.Start(t, lab.Options{Names: []string{"c1", "c2"}, HubArgs: []string{"--verbose", "--metrics", w.metrics, "--hooks", w.hooks},
		HubEnv: []string{"CANARY_HMAC=" + value("GateKey")}})
	ctx := t.Context()
	for _, c := range w.Clusters {
		token, err := w.Token(ctx, c.Name, "--label", "name="+c.Name)
		must(t, err)
		w.passwords["join token of "+c.Name] = token
		c.Agent = w.NewAgent(c, lab.AgentOptions{Token: token, Kubeconfig: behind(t, c, logLines)})
		c.Agent.Args = append(c.Agent.Args, "--log-level", "DEBUG")
		must(t, c.Agent.Start())
	}
	w.eveConfig = filepath.Join(w.Dir, "eve.yaml")
	w.towline("user", "create", "eve", "--role", "viewer", "--save", w.eveConfig)
	w.passwords["token of user robot"] = strings.TrimSpace(w.towline("user", "create", "robot", "--role", "viewer"))
	w.admin, err = w.Hub.Client(t.Context())
	must(t, err)
	w.eve, err = client.Dial(t.Context(), client.Options{Config: w.eveConfig})
	must(t, err)
	t.Cleanup(func() { _, _ = w.admin.Close(), w.eve.Close() })
	e2etest.Ready(t, w.Lab)
	return w
}

// logLines are what pods print: values that they were given.
var logLines = "2026-07-03T12:00:01Z dial db://u:" + value("Argument") + "@db\n2026-07-03T12:00:02Z Authorization: Basic " + base64Of("u:"+value("Global")) + "\n" +
	"2026-07-03T12:00:03Z " + value("Several") + "\n2026-07-03T12:00:04Z in the cluster it is " + value("InCluster") + "\n"

// run runs a command and keeps what it said, whatever that is.
func (w *world) run(stdin string, args ...string) lab.Result {
	w.t.Helper()
	r := w.Feed(w.t.Context(), stdin, args...)
	w.seen.add("admin runs "+strings.Join(args, " "), []byte(r.Stdout+r.Stderr))
	return r
}

// towline runs a command that must end with 0, whose output is not kept.
func (w *world) towline(args ...string) string {
	w.t.Helper()
	r := w.CLI(w.t.Context(), args...)
	must(w.t, r.Err())
	return r.Stdout
}

func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	if err := lab.PollFor(w.t.Context(), limit, f); err != nil {
		w.t.Fatalf("%s: %v\nhub:\n%s\nagent:\n%s", what, err, w.Hub.Tail(), w.Clusters[0].Agent.Tail())
	}
}

// plant puts all secrets and modules.
func (w *world) plant(server string) {
	w.t.Helper()
	for _, s := range secrets() {
		args := []string{"secret", "set", s.name}
		dir := w.t.TempDir()
		for _, key := range slices.Sorted(maps.Keys(s.values)) {
			file := filepath.Join(dir, key)
			must(w.t, os.WriteFile(file, []byte(s.values[key]), 0o600))
			args = append(args, key+"=@"+file)
		}
		if s.scope != "" {
			args = append(args, "--cluster", s.scope)
		}
		must(w.t, w.run("", args...).Err())
	}
	for _, c := range w.Clusters {
		must(w.t, c.Create(w.t.Context(), object("v1", "Secret", "default", "db-app", map[string]any{"stringData": map[string]any{"password": value("InCluster")}})))
		must(w.t, c.Create(w.t.Context(), object("v1", "Namespace", "", "shop", nil)))
		creds := object("v1", "Secret", "shop", "creds", map[string]any{"stringData": map[string]any{"password": value("LastApplied")}})
		creds.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"stringData":{"password":"` + value("LastApplied") + `"}}`,
			"kapp.k14s.io/original": `{"kind":"Secret","data":{"password":"` + base64Of(value("Kapp")) + `"}}`, "objectset.rio.cattle.io/applied": base64Of(zipped(`{"data":{"password":"` + base64Of(value("Wrangler")) + `"}}`))})
		must(w.t, c.Create(w.t.Context(), creds))
	}
	must(w.t, w.run(shop("1")+"  policies: [{adopt: Always}]\n", "apply", "-f", "-", "--wait", "--timeout", "2m").Err())
	for name, text := range badModules(server) {
		if r := w.run(text, "apply", "-f", "-"); r.Code == 0 {
			w.t.Errorf("%s: is taken: %s", name, r.Stdout)
		}
		w.run(text, "diff", "-f", "-")
		w.run(text, "render", "-f", "-")
	}
	for _, text := range others(server) {
		must(w.t, w.run(text, "apply", "-f", "-").Err())
	}
	must(w.t, w.run("apiVersion: towline.dev/v1\nkind: Project\nmetadata: {name: team}\n", "apply", "-f", "-").Err())
	must(w.t, w.run("apiVersion: towline.dev/v1\nkind: Catalog\nmetadata: {name: team, project: team}\nspec: {source: {git: {url: \""+strings.Replace(server, "http://", "http://u:"+value("CatalogPassword")+"@", 1)+"/refused/x.git\"}}}\n",
		"apply", "-f", "-").Err())
}

// object is one of somebody else.
func object(apiVersion, kind, ns, name string, more map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	maps.Copy(u.Object, more)
	if ns != "" {
		u.SetNamespace(ns)
	}
	return u
}

// happens is what goes wrong: rollouts fail, controllers quote what they were given, and somebody edits what is a module's.
func (w *world) happens(server string) {
	w.t.Helper()
	for _, name := range []string{"basic", "away", "token", "urls", "broken", "git", "helm", "invalid", "denied", "gated"} {
		w.eventually("the rollout of "+name+" fails", func() error {
			r := w.CLI(w.t.Context(), "get", "rollouts", name, "-o", "json")
			if !slices.ContainsFunc([]string{`"Failed"`, `"TooManyFailures"`, `"GateError"`}, func(word string) bool { return strings.Contains(r.Stdout, word) }) {
				return fmt.Errorf("%.3000s%s", r.Stdout, r.Stderr)
			}
			return nil
		})
	}
	w.hook(value("Webhook"), http.StatusAccepted)
	w.hook("wrong", http.StatusForbidden)
	c := w.Clusters[0]
	w.towline("hold", "object", "Secret/shop/creds", "--cluster", "c1", "--for", "1h")
	w.towline("hold", "ConfigMap/shop/uses", "--cluster", "c1", "--for", "1h")
	w.eventually("the agent knows of the holds", func() error {
		return w.says(`"Held"`, "get", "objects", "--module", "shop", "--cluster", "c1", "--name", "creds", "-o", "json")
	})
	must(w.t, c.Merge(w.t.Context(), "v1", "Secret", "shop", "creds", `{"data":{"password":"`+base64Of(value("Foreign"))+`"}}`))
	must(w.t, c.Merge(w.t.Context(), "v1", "ConfigMap", "shop", "uses", `{"data":{"said":"it is `+value("Global")+` and `+base64Of("u:"+value("Scoped"))+`"}}`))
	w.eventually("the module that carries a Secret is there", func() error {
		_, err := c.Get(w.t.Context(), "canaries.example.org/v1", "Holder", "carried", "holder")
		return err
	})
	w.towline("hold", "object", "Holder/carried/holder", "--cluster", "c1", "--for", "1h")
	w.eventually("the agent knows of the hold", func() error {
		return w.says(`"Held"`, "get", "objects", "--module", "carried", "--cluster", "c1", "--name", "holder", "-o", "json")
	})
	must(w.t, c.Merge(w.t.Context(), "canaries.example.org/v1", "Holder", "carried", "holder", `{"spec":{"manifest":{"stringData":{"password":"`+value("ForeignCarried")+`"}}}}`))
	w.controllersQuote(c)
	w.eventually("the edit of what is carried is seen", func() error {
		return w.says(`"drift": "Held"`, "get", "objects", "--module", "carried", "--cluster", "c1", "--name", "holder", "-o", "json")
	})
	w.eventually("the edit is seen", func() error {
		return w.says(`"drift": "Held"`, "get", "objects", "--module", "shop", "--cluster", "c1", "--name", "creds", "-o", "json")
	})
}

// says fails unless the output of a command has a text.
func (w *world) says(text string, args ...string) error {
	if r := w.CLI(w.t.Context(), args...); !strings.Contains(r.Stdout, text) {
		return fmt.Errorf("towline %s has no %s: %s%s", strings.Join(args, " "), text, r.Stdout, r.Stderr)
	}
	return nil
}

// controllersQuote has a status and an Event repeat what an object has.
func (w *world) controllersQuote(c *lab.Cluster) {
	w.t.Helper()
	deployments, err := c.Resource("apps/v1", "Deployment", "shop")
	must(w.t, err)
	message := fmt.Sprintf(`container main: argument --dsn=db://u:%s@db is not allowed, nor %q in its environment, nor %s`, value("Argument"), `a "`+value("Quoted")+`" \ 'b'`, value("Several")[:len(mark)+5])
	web, err := deployments.Get(w.t.Context(), "web", metav1.GetOptions{})
	must(w.t, err)
	web, err = deployments.Patch(w.t.Context(), "web", types.MergePatchType, []byte(fmt.Sprintf(`{"status":{"observedGeneration":%d,"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":%q}]}}`,
		web.GetGeneration(), message)), metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "status")
	must(w.t, err)
	must(w.t, c.Create(w.t.Context(), object("v1", "Event", "shop", "web.quoted", map[string]any{"reason": "FailedCreate", "type": "Warning", "message": message,
		"involvedObject": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web", "uid": string(web.GetUID())}})))
}

// hook calls for a look at a module's source.
func (w *world) hook(key string, want int) {
	w.t.Helper()
	body := []byte(`{"ref":"refs/heads/main"}`)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(body)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "https://"+w.hooks+"/hooks/default/followed", bytes.NewReader(body))
	must(w.t, err)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	req.Header.Set("X-Gitlab-Token", key)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // of the hub's own CA
	resp, err := c.Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != want {
		w.t.Errorf("a call signed with %s: %s, want %d", key, resp.Status, want)
	}
}

// read reads all that there is to be read of a system that runs.
func (w *world) read(when string, modules map[string]string) {
	w.t.Helper()
	all := append(slices.Sorted(maps.Keys(modules)), "shop", "c1", "app", "repo", "team", "default")
	w.seen.readAPI(w.t, "admin", w.admin, all)
	w.seen.readAPI(w.t, "viewer", w.eve, all)
	w.seen.readURL(w.t, "metrics of the hub", "http://"+w.metrics+"/metrics")
	for who, config := range map[string]string{"admin": w.Hub.Config(), "viewer": w.eveConfig} {
		for _, args := range looks {
			r := w.As(w.t.Context(), config, "", args...)
			w.seen.add(who+" runs "+strings.Join(args, " "), []byte(r.Stdout+r.Stderr))
			if who == "admin" && strings.Contains(r.Stderr, "usage") {
				w.t.Errorf("%s: %s", when, r.Err())
			}
		}
	}
	for _, text := range []string{shop("3"), modules["chart"], modules["patched"], modules["carried"], modules["basic"], modules["invalid"], modules["denied"]} {
		for _, args := range [][]string{{"diff", "-f", "-"}, {"diff", "-f", "-", "-o", "json"}, {"render", "-f", "-", "--all"}, {"apply", "-f", "-", "--dry-run=server"}} {
			w.run(text, args...)
		}
	}
	must(w.t, w.run("", "logs", "Deployment/shop/web", "--cluster", "c1").Err())
}

// looks are commands that people look with.
var looks = func() (out [][]string) {
	for _, kind := range []string{"modules", "clusters", "revisions", "rollouts", "trackers", "objects", "projects", "secrets", "tokens", "users", "holds", "catalogs"} {
		for _, form := range []string{"wide", "yaml"} {
			out = append(out, []string{"get", kind, "-A", "-o", form})
		}
	}
	for _, line := range []string{"get objects --module shop --live -o yaml", "get objects --module invalid --live -o yaml", "get objects --module carried --live -o yaml", "get objects --drift -A -o json", "describe module shop carried chart basic gated urls", "describe cluster c1",
		"describe secret app", "describe catalog team", "tree module/shop --all", "tree cluster/c1 --all", "events module/shop", "explain rollout shop", "explain rollout gated", "explain rollout basic",
		"explain cluster c1", "explain object Secret/shop/creds --cluster c1", "explain object ConfigMap/shop/uses --cluster c1", "explain object Deployment/shop/web --cluster c1", "rollout status basic --watch=false --all",
		"rollout history shop", "render shop", "render chart", "render patched", "render carried", "explain object Holder/carried/holder --cluster c1", "secret list app", "certificate list", "config view"} {
		out = append(out, strings.Fields(line))
	}
	return out
}()

// ends lets the holds go, rotates a value, rolls back, deletes, and takes a backup.
func (w *world) ends() {
	w.t.Helper()
	w.run("", "unhold", "object", "Secret/shop/creds", "--cluster", "c1")
	w.run("", "unhold", "ConfigMap/shop/uses", "--cluster", "c1")
	must(w.t, w.run("  "+value("Rotated")+"again", "secret", "set", "app", "rotated=-").Err())
	must(w.t, w.run(shop("2")+"  policies: [{adopt: Always}]\n", "apply", "-f", "-").Err())
	w.eventually("the next revision is there", func() error { return w.hasVersion("2") })
	w.run("", "rollout", "rollback", "shop", "-m", "back")
	w.eventually("the module is back", func() error { return w.hasVersion("1") })
	must(w.t, w.run("", "delete", "module", "invalid", "denied", "--yes", "--timeout=2m").Err())
	must(w.t, w.run("", "delete", "secret", "bearer", "--yes").Err())
	file := filepath.Join(w.Dir, "backup.db")
	must(w.t, w.backup(file))
	data, err := os.ReadFile(file)
	must(w.t, err)
	w.seen.add("backup", data)
}

func (w *world) hasVersion(want string) error {
	for _, c := range w.Clusters {
		u, err := c.Get(w.t.Context(), "v1", "ConfigMap", "shop", "uses")
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(u.Object, "data", "version"); got != want {
			return fmt.Errorf("cluster %s has %s, want %s", c.Name, got, want)
		}
	}
	return nil
}

// backup has the hub save its store.
func (w *world) backup(file string) error {
	out, err := exec.CommandContext(w.t.Context(), filepath.Join(os.Getenv("TOWLINE_BIN"), "towline-hub"), "backup", "--data-dir", w.Hub.DataDir, "--to", file).CombinedOutput()
	w.seen.add("output of the backup", out)
	return err
}

// stops ends all processes in peace, and reads what they leave.
func (w *world) stops() {
	w.t.Helper()
	for _, c := range w.Clusters {
		c.Agent.Stop()
	}
	w.Hub.Stop()
	w.seen.readFiles(w.t, "hub has", w.Hub.DataDir)
	w.seen.readFile(w.t, "log of the hub", w.Hub.Log)
	for _, c := range w.Clusters {
		w.seen.readFiles(w.t, "agent of "+c.Name+" has", c.Agent.StateDir)
		w.seen.readFile(w.t, "log of an agent", c.Agent.Log)
	}
}

// readers begin the places where admins read what they put: of modules and catalogs, of their revisions, and the strategy of rollouts.
var readers = []string{"admin calls GetModule", "admin calls ListModules", "admin calls WatchModules", "admin calls GetRevision", "admin calls ListRevisions", "admin calls GetCatalog", "admin calls ListCatalogs",
	"admin calls GetRollout", "admin calls ListRollouts", "admin calls WatchRollout", "admin calls ExplainRollout",
	"admin runs get modules -A -o yaml", "admin runs get revisions -A -o yaml", "admin runs get rollouts -A -o yaml", "admin runs get catalogs -A -o yaml", "admin runs describe module", "admin runs describe catalog"}

// belongs reports that a canary may be in a place.
func (c canary) belongs(where string) bool {
	at := func(begin string) bool { return strings.HasPrefix(where, begin) }
	switch {
	case !c.text:
		return false
	case at("hub has etcd"), at("backup"):
		return true
	case at("agent of "):
		return c.applied
	}
	return slices.ContainsFunc(readers, at)
}

// judge holds what was seen against where it belongs.
func (w *world) judge() {
	w.t.Helper()
	w.judgeKeys()
	by := map[string]canary{}
	for _, c := range canaries {
		by[c.name] = c
	}
	found := map[string]map[string]bool{}
	for _, where := range slices.Sorted(maps.Keys(w.seen)) {
		for _, name := range find(w.seen[where], names()) {
			if c, known := by[name]; !known || !c.belongs(where) {
				w.t.Errorf("%s: shows %s", where, name)
			}
			if found[name] == nil {
				found[name] = map[string]bool{}
			}
			found[name][where] = true
		}
	}
	if len(w.seen) < 200 {
		w.t.Errorf("only %d places were read", len(w.seen))
	}
	for _, c := range canaries {
		w.isWhereItBelongs(c, found[c.name])
	}
}

// isWhereItBelongs: what is read shows a canary where it has to be. If it did not, nothing would be proved by not finding others.
func (w *world) isWhereItBelongs(c canary, found map[string]bool) {
	w.t.Helper()
	in := func(begin string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(where string) bool { return strings.HasPrefix(where, begin) })
	}
	if c.text && (!in("backup") || !in("hub has etcd") || !in("admin calls ")) {
		w.t.Errorf("%s is not found where it was put: %v", c.name, found)
	}
	if c.applied && !in("agent of ") {
		w.t.Errorf("%s is not found in the state of an agent: %v", c.name, found)
	}
}

// judgeKeys: what was handed out once, and private keys, are in no place but their own.
func (w *world) judgeKeys() {
	w.t.Helper()
	for what, password := range w.passwords {
		if len(password) < 20 {
			w.t.Errorf("%s is %q", what, password)
			continue
		}
		for where, data := range w.seen {
			if shows(data, password) {
				w.t.Errorf("%s: shows the %s", where, what)
			}
		}
	}
	for own, key := range w.privateKeys() {
		for where, data := range w.seen {
			if where != own && shows(data, key) {
				w.t.Errorf("%s: shows the private key of %s", where, own)
			}
		}
		if !shows(w.seen[own], key) {
			w.t.Errorf("%s: its key is not found there", own)
		}
	}
}

// privateKeys are parts of the keys that are kept in files, by where these are.
func (w *world) privateKeys() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	field := func(where, field string) []byte {
		m := regexp.MustCompile(field + `["']?: ?"?([A-Za-z0-9+/=]{40,})`).FindSubmatch(w.seen[where])
		if m == nil {
			w.t.Fatalf("%s has no %s", where, field)
		}
		raw, err := base64.StdEncoding.DecodeString(string(m[1]))
		must(w.t, err)
		return raw
	}
	// The middle of the number that an elliptic key is, which stands in one line of its PEM.
	secret := func(der []byte) string { return string(der[48:66]) }
	for where, text := range map[string][]byte{"hub has ca.key": w.seen["hub has ca.key"], "hub has admin.yaml": field("hub has admin.yaml", "keyData")} {
		block, _ := pem.Decode(text)
		if block == nil {
			w.t.Fatalf("%s has no PEM", where)
		}
		out[where] = secret(block.Bytes)
	}
	out["hub has secrets.key"] = strings.TrimSpace(string(w.seen["hub has secrets.key"]))[:40]
	for _, c := range w.Clusters {
		out["agent of "+c.Name+" has identity.state"] = secret(field("agent of "+c.Name+" has identity.state", "key"))
		vault := w.seen["agent of "+c.Name+" has vault-key.state"]
		out["agent of "+c.Name+" has vault-key.state"] = string(vault[len(vault)-21 : len(vault)-1])
	}
	return out
}

// shows reports that a text is in data, also in base64 or compressed.
func shows(data []byte, text string) bool {
	for _, part := range append(unpacked(data, 3), data) {
		if slices.ContainsFunc(forms(text), func(form string) bool { return bytes.Contains(part, []byte(form)) }) {
			return true
		}
	}
	return false
}
