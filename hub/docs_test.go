package hub_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// guide is a page of the documentation with its examples.
type guide struct {
	yaml, commands []string
}

var fence = regexp.MustCompile("(?ms)^```(yaml|sh)\n(.*?)^```$")

func readGuide(t *testing.T, path string) guide {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	var g guide
	for _, m := range fence.FindAllStringSubmatch(string(data), -1) {
		if m[1] == "yaml" {
			g.yaml = append(g.yaml, m[2])
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(m[2], "\\\n", " ")) {
			command, _, _ := strings.Cut(line, " # ")
			command, _, _ = strings.Cut(command, " > ")
			if strings.HasPrefix(command, "towline ") {
				g.commands = append(g.commands, strings.TrimSpace(command))
			}
		}
	}
	return g
}

// whole makes a module of a strategy: the first module of the page with it.
func (g guide) whole(example string) string {
	if !strings.HasPrefix(example, "rollout:") {
		return example
	}
	base, _, _ := strings.Cut(g.yaml[0], "  rollout:\n")
	var out strings.Builder
	out.WriteString(base)
	for line := range strings.Lines(example) {
		out.WriteString("  " + line)
	}
	return out.String()
}

// buildCLI builds the towline command once for all tests of the process; builtIn is the folder that it is in, which TestMain removes.
var (
	builtIn  string
	buildCLI = sync.OnceValue(func() error {
		out, err := exec.Command("go", "build", "-o", filepath.Join(builtIn, "towline"), "towline.dev/towline/ctl/cmd/towline").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
)

// builtCLI is the path of the towline command.
func builtCLI(t *testing.T) string {
	t.Helper()
	if err := buildCLI(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(builtIn, "towline")
}

// cli is the towline command against the world's hub.
func (w *world) cli() func(stdin string, args ...string) (string, error) {
	w.t.Helper()
	path := builtCLI(w.t)
	return func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(w.ctx, path, args...)
		cmd.Env = append(os.Environ(), "TOWLINE_CONFIG="+filepath.Join(w.dir, "admin.yaml"))
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// TestExamplesOfTheRolloutGuide: every strategy of docs/rollouts.md is one that the hub takes and that can be simulated,
// the first is rolled out, and every command is one that there is.
func TestExamplesOfTheRolloutGuide(t *testing.T) {
	g := readGuide(t, "../docs/rollouts.md")
	if len(g.yaml) < 6 || len(g.commands) < 15 {
		t.Fatalf("%d examples and %d commands found", len(g.yaml), len(g.commands))
	}
	w := newWorld(t, true)
	towline := w.cli()
	clusters := map[string]map[string]string{"c1": {"env": "prod", "ring": "canary"}, "c2": {"env": "prod", "region": "eu", "tier": "1"},
		"c3": {"env": "prod", "region": "eu", "tier": "2"}, "c4": {"env": "prod"}}
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		w.join(name, nil, clusters[name])
	}
	for i, example := range g.yaml {
		module := g.whole(example)
		if out, err := towline(module, "apply", "-f", "-", "--dry-run=server"); err != nil || strings.Contains(out, "Warning: stage") {
			t.Errorf("example %d: %v\n%s\n%s", i+1, err, out, example)
		}
		if strings.Contains(example, "external:") {
			continue
		}
		out, err := towline(module, "rollout", "simulate", "-f", "-", "--start", "2026-07-01T10:00:00Z")
		if err != nil || !strings.Contains(out, "Succeeded after") {
			t.Errorf("example %d does not come to its end: %v\n%s", i+1, err, out)
		}
	}
	if out, err := towline(g.yaml[0], "apply", "-f", "-", "-m", "shop 1.5.0", "--wait", "--timeout", "30s"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline("", "rollout", "status", "shop", "--watch=false"); err != nil || !strings.Contains(out, "4/4") && !strings.Contains(out, "3/3") {
		t.Errorf("%v\n%s", err, out)
	}
	g.commandsAreKnown(t, towline)
}

// TestExamplesOfThePolicyPage: every example of docs/policies.md is one that the hub takes;
// what they do, the agent's tests say.
func TestExamplesOfThePolicyPage(t *testing.T) {
	g := readGuide(t, "../docs/policies.md")
	if len(g.yaml) < 12 {
		t.Fatalf("%d examples found", len(g.yaml))
	}
	towline := newWorld(t, true).cli()
	for _, example := range g.yaml {
		module := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec:\n  source: {inline: {files: {a.yaml: \"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\"}}}\n" +
			"  namespace: default\n  placement: {selector: {}}\n  " + strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n  ") + "\n"
		if out, err := towline(module, "apply", "-f", "-", "--dry-run=server"); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, example)
		}
	}
}

// TestExamplesOfTheBindingsPage: every example of docs/bindings.md is one that the hub takes, whole.
func TestExamplesOfTheBindingsPage(t *testing.T) {
	rollOutExamples(t, "../docs/bindings.md", 6, map[string]string{"region": "us", "web-replicas": "5"})
}

// TestExamplesOfTheOrderPage: the modules of docs/order.md are put together, each cluster has both, and they are deleted together.
func TestExamplesOfTheOrderPage(t *testing.T) {
	g := readGuide(t, "../docs/order.md")
	if len(g.yaml) != 3 {
		t.Fatalf("%d examples found", len(g.yaml))
	}
	w := newWorld(t, true)
	w.join("c", nil, map[string]string{"role": "control"})
	w.join("d", nil, map[string]string{"role": "work"})
	towline := w.cli()
	if out, err := towline(g.yaml[1], "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline(g.yaml[2], "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline(g.yaml[2], "render", "-f", "-"); err != nil || !strings.HasPrefix(out, "# Waves -1, 0, 1: each begins in a cluster when the one before is healthy there\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline(g.yaml[2], "rollout", "simulate", "-f", "-", "--start", "2026-07-01T10:00:00Z"); err != nil || !strings.Contains(out, "Waves: each begins in a cluster") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline(g.yaml[0], "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil || strings.Contains(out, "Warning: module shop: depends on") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline("", "delete", "module", "base", "shop", "--yes", "--timeout", "30s"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestExamplesOfThePackagePage: every module of docs/packages.md is rendered and rolled out.
func TestExamplesOfThePackagePage(t *testing.T) {
	rollOutExamples(t, "../docs/packages.md", 3, nil)
}

// TestExamplesOfTheOverridesPage: every module of docs/overrides.md is rolled out to a cluster that its overrides match.
func TestExamplesOfTheOverridesPage(t *testing.T) {
	rollOutExamples(t, "../docs/overrides.md", 3, map[string]string{"env": "prod", "tier": "gold"})
}

// rollOutExamples applies the modules of a page, of which there are so many at least, to a cluster with labels.
func rollOutExamples(t *testing.T, page string, least int, labels map[string]string) {
	t.Helper()
	g := readGuide(t, page)
	if len(g.yaml) < least {
		t.Fatalf("%d examples found", len(g.yaml))
	}
	w := newWorld(t, true)
	w.join("c", nil, labels)
	towline := w.cli()
	for _, example := range g.yaml {
		if out, err := towline(example, "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, example)
		}
	}
}

// commandsAreKnown asks for the help of every command of the page.
func (g guide) commandsAreKnown(t *testing.T, towline func(stdin string, args ...string) (string, error)) {
	t.Helper()
	for _, command := range g.commands {
		args, err := words(command)
		must(t, err)
		if out, err := towline("", append(args[1:], "--help")...); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

// words splits a command line; double quotes keep words together.
func words(line string) ([]string, error) {
	var out []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	if strings.Count(line, `"`)%2 == 1 {
		return nil, fmt.Errorf("%s: a quote is open", line)
	}
	return out, nil
}

// TestExamplesOfTheSourcesPage: every example of docs/sources.md is fetched from a server that has what it asks for, and rolled out; and
// every command is one that there is.
func TestExamplesOfTheSourcesPage(t *testing.T) {
	g := readGuide(t, "../docs/sources.md")
	if len(g.yaml) < 2 {
		t.Fatalf("%d examples found", len(g.yaml))
	}
	w := newWorld(t, true)
	w.join("a", nil, nil)
	towline := w.cli()
	repo := sourcetest.NewRepo(t)
	charts := chartRepository(t)
	repo.Tag("v1.4.0", repo.Branch("main", map[string]any{"deploy/a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}",
		"charts/front/Chart.yaml": "apiVersion: v2\nname: front\nversion: 1.0.0\ndependencies: [{name: web, version: 4.x, repository: '" + charts + "'}]\n"}), true)
	git := httptest.NewServer(repo.Handler())
	t.Cleanup(git.Close)
	private, public := sourcetest.Key(t, "")
	ssh := sourcetest.ServeSSH(t, public, repo.SSHAnswer)
	reg := sourcetest.NewRegistry(t, nil)
	reg.Push("team/shop", "1.4.0", "application/x", sourcetest.Layer{Type: "application/yaml", Data: []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")})
	_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "registry-login", Values: map[string][]byte{"username": []byte("bot"), "password": []byte("hunter22")}})
	must(t, err)
	_, err = w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "git-key", Values: map[string][]byte{"identity": private, "known_hosts": []byte(ssh.KnownHosts)}})
	must(t, err)
	signed := signedSources(t, g.yaml, reg)
	hosts := strings.NewReplacer("https://git.example.com/shop.git", git.URL+"/repo.git", "ssh://git@git.example.com/shop.git", "ssh://git@"+ssh.Addr+"/repo.git",
		"oci://registry.example.com/team/shop", "oci://"+reg.Host+"/team/shop\n      insecure: true",
		"https://charts.example.com/stable", charts)
	for _, example := range g.yaml {
		module := signed(hosts.Replace(example))
		if !strings.Contains(module, "namespace:") {
			module = strings.Replace(module, "spec:\n", "spec:\n  namespace: default\n", 1)
		}
		if out, err := towline(module, "apply", "-f", "-", "--wait", "--timeout", "30s"); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, example)
		}
	}
	if out, err := towline("", "get", "revisions", "-o", "wide"); err != nil || !strings.Contains(out, "main@sha1:") || !strings.Contains(out, "v1.4.0@sha1:") || !strings.Contains(out, "1.4.0@sha256:") || !strings.Contains(out, "4.2.0@sha256:") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := towline("", "describe", "module", "shop"); err != nil || !strings.Contains(out, "/repo.git main deploy") {
		t.Errorf("%v\n%s", err, out)
	}
	if made := w.manifests("shop-front", 1); !strings.Contains(made, `"4.2.0"`) {
		t.Errorf("a chart that depends on another: %s", made)
	}
	g.commandsAreKnown(t, towline)
}

// signedSources signs what the examples want to have signed, and returns what puts the keys of that into them.
func signedSources(t *testing.T, examples []string, reg *sourcetest.Registry) func(string) string {
	s := sourcetest.NewSigner(t, "ssh-keygen")
	if s == nil {
		t.Skip("git or ssh-keygen is not here")
	}
	file, line := s.SSH("ed25519")
	s.Commit("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", "", "")
	s.Tag("v1.4.0", "ssh", file)
	git := httptest.NewServer(s.Repo().Handler())
	t.Cleanup(git.Close)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	digest := reg.Digest("team/shop", "1.4.0")
	reg.CosignTag("team/shop", digest, key, sourcetest.SimplePayload("team/shop", digest))
	public := strings.ReplaceAll(strings.TrimSpace(sourcetest.PublicPEM(t, key)), "\n", "\n        ")
	sshLine := regexp.MustCompile(`ssh-ed25519 \S+ ana@example\.com`)
	block := regexp.MustCompile(`(?s)-----BEGIN PUBLIC KEY-----.*-----END PUBLIC KEY-----`)
	if all := strings.Join(examples, ""); !sshLine.MatchString(all) || !block.MatchString(all) {
		t.Error("no example has a key")
	}
	return func(example string) string {
		example = strings.ReplaceAll(example, "https://git.example.com/signed.git", git.URL+"/repo.git")
		return block.ReplaceAllLiteralString(sshLine.ReplaceAllLiteralString(example, strings.TrimSpace(line)), public)
	}
}

// chartRepository serves a chart in two versions.
func chartRepository(t *testing.T) string {
	mux := http.NewServeMux()
	index := "entries:\n  web:\n"
	for _, v := range []string{"4.1.0", "4.2.0"} {
		data := sourcetest.Archive(t, map[string]string{"web/Chart.yaml": "apiVersion: v2\nname: web\nversion: " + v + "\n",
			"web/templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {version: {{ .Chart.Version | quote }}}\n"})
		index += fmt.Sprintf("  - {name: web, version: %s, digest: %x, urls: [web-%s.tgz]}\n", v, sha256.Sum256(data), v)
		mux.HandleFunc("/web-"+v+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	mux.HandleFunc("/index.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(index)) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}
