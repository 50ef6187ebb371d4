package histories

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/test/e2e/e2etest"
)

// image of an app, by which its pods get ready or never do.
func (c config) image() string {
	if c.bad {
		return fmt.Sprintf("never-ready:%d", c.n)
	}
	return fmt.Sprintf("nginx:%d", c.n)
}

// name of the ConfigMap that an app uses.
func (c config) name(app string) string { return fmt.Sprintf("%s-%d", app, c.n) }

// mark is the ConfigMap of a module which tells what was put.
func mark(module string) string { return "of-" + module }

// objects that a put lists, by KIND/NAME.
func (p put) objects() map[string]map[string]any {
	out := map[string]map[string]any{}
	configMap := func(name, key, value string) {
		out["ConfigMap/"+name] = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{key: value}}
	}
	configMap(mark(p.module), "put", fmt.Sprint(p.number))
	for app, c := range p.apps {
		configMap(c.name(app), "n", fmt.Sprint(c.n))
		out["Deployment/"+app] = map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": app}, "spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": app}}, "spec": podSpec(app, c)}}}
	}
	return out
}

func podSpec(app string, c config) map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "main", "image": c.image(),
		"envFrom": []any{map[string]any{"configMapRef": map[string]any{"name": c.name(app)}}}}}}
}

// text is what is applied. JSON is YAML.
func (p put) text() string {
	objects := p.objects()
	var files strings.Builder
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		files.WriteString("---\n" + asJSON(objects[key]) + "\n")
	}
	return "---\n" + asJSON(map[string]any{"apiVersion": "towline.dev/v1", "kind": "Module", "metadata": map[string]any{"name": p.module}, "spec": map[string]any{
		"namespace": home, "placement": map[string]any{"selector": map[string]any{}},
		"source":   map[string]any{"inline": map[string]any{"files": map[string]any{"a.yaml": files.String()}}},
		"policies": []any{map[string]any{"adopt": "Always", "drift": p.drift}},
		"rollout": map[string]any{"progressDeadline": "15s", "stages": []any{
			map[string]any{"name": "canary", "selector": map[string]any{"matchLabels": map[string]any{"ring": "canary"}}, "soak": "1s"}, map[string]any{"name": "rest"}}},
	}}) + "\n"
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (p put) String() string {
	return fmt.Sprintf("%s put %d drift=%s %v", p.module, p.number, p.drift, p.apps)
}

// next is a put of a module with apps that it has already, or others.
func (w *world) next(name string, has map[string]config, drift string) put {
	w.last++
	return put{number: w.last, module: name, apps: has, drift: drift}
}

// change draws new configurations for some of the apps of a module.
func (w *world) change(of map[string]config, bad bool) map[string]config {
	out := maps.Clone(of)
	for _, app := range slices.Sorted(maps.Keys(out)) {
		if w.Rand.IntN(2) == 0 {
			w.last++
			out[app] = config{n: w.last, bad: bad && w.Rand.IntN(2) == 0}
		}
	}
	return out
}

// apply puts modules together.
func (w *world) apply(name string, all ...put) bool {
	var text strings.Builder
	for _, p := range all {
		text.WriteString(p.text())
		w.puts[p.number] = p
	}
	r := w.Feed(w.T.Context(), text.String(), "apply", "-f", "-")
	said := "ok"
	if r.Err() != nil {
		said = strings.TrimSpace(r.Stderr)
	}
	w.Note(name, "%v: %s", all, said)
	if r.Err() != nil {
		return false
	}
	for _, p := range all {
		w.now[p.module] = p
	}
	return true
}

func (w *world) drift() string {
	return e2etest.Pick(w.Random, []string{"Correct", "Correct", "Correct", "Report", "Ignore"})
}

// putOne changes one module.
func (w *world) putOne() bool {
	m, ok := w.now[e2etest.Pick(w.Random, modules)]
	if !ok {
		return false
	}
	drift := m.drift
	if w.Rand.IntN(4) == 0 {
		drift = w.drift()
	}
	return w.apply("put", w.next(m.module, w.change(m.apps, true), drift))
}

// putBoth changes both, and lets apps move between them.
func (w *world) putBoth() bool {
	has := map[string]map[string]config{"one": {}, "two": {}}
	for _, app := range apps {
		w.last++
		c, in := config{n: w.last}, e2etest.Pick(w.Random, modules)
		for _, name := range modules {
			if now, ok := w.now[name].apps[app]; ok {
				c, in = now, name
			}
		}
		if w.Rand.IntN(3) == 0 {
			in = e2etest.Pick(w.Random, modules)
		}
		has[in][app] = c
	}
	var all []put
	for _, name := range modules {
		drift := "Correct"
		if m, ok := w.now[name]; ok {
			drift = m.drift
		}
		all = append(all, w.next(name, w.change(has[name], true), drift))
	}
	return w.apply("put both", all...)
}

// putGood puts both modules as they are to be at rest.
func (w *world) putGood() {
	has := map[string]map[string]config{"one": {}, "two": {}}
	for _, app := range apps {
		in := e2etest.Pick(w.Random, modules)
		for _, name := range modules {
			if _, ok := w.now[name].apps[app]; ok {
				in = name
			}
		}
		w.last++
		has[in][app] = config{n: w.last}
	}
	ok := false
	for range 60 { // a module that was deleted is gone only after a while
		if ok = w.apply("put good", w.next("one", has["one"], "Correct"), w.next("two", has["two"], "Correct")); ok {
			return
		}
		w.confirm()
		w.Pause(lag / 2)
	}
	w.Fatal("a module that is good cannot be put")
}
