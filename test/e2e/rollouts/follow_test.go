package rollouts

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
)

// podsTake is how long the pods of base and shop take until they are ready.
const podsTake = 1500 * time.Millisecond

// regions are the label of each cluster; the last one has none.
var regions = map[string]string{"c1": "eu", "c2": "eu", "c3": "us"}

// pushed are the files of the repository: what base has, and the chart of shop.
func pushed(base, shop int) map[string]string {
	return map[string]string{
		"base/base.yaml": `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
` + deployment("base", fmt.Sprint("example.com/base:", base)),
		"charts/shop/Chart.yaml": "{apiVersion: v2, name: shop, version: 1.0.0}\n",
		"charts/shop/values.yaml": fmt.Sprintf(`image: example.com/shop:%d
level: info
`, shop),
		"charts/shop/templates/shop.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data:
  at: {{ printf "%s in %s" .Values.cluster .Values.region | quote }}
  level: {{ .Values.level }}
---
apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}}
stringData: {header: "Bearer {{ .Values.token }}"}
---
` + deployment("{{ .Release.Name }}", "{{ .Values.image }}"),
	}
}

func deployment(name, image string) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}, annotations: {kubelab.towline.dev/ready-after: ` + podsTake.String() + `}}
    spec: {containers: [{name: main, image: "` + image + `"}]}
`
}

// followers are base, which goes to all clusters at once, and shop, which needs it, and goes to the canary first.
func followers(url string) string {
	head := func(name, path string) string {
		return `apiVersion: towline.dev/v1
kind: Module
metadata: {name: ` + name + `}
spec:
  namespace: shop
  source:
    git: {url: "` + url + `", ref: {branch: main}, path: ` + path + `}
    follow: {interval: 30s, webhook: true}
  placement: {selector: {}}
`
	}
	return head("base", "base") + "---\n" + head("shop", "charts/shop") + `
  dependsOn: [{module: base}]
  package:
    helm: {values: {cluster: "${CLUSTER}", region: "${REGION}", token: "${TOKEN}"}}
  bindings:
  - {name: CLUSTER, clusterField: metadata.name}
  - {name: REGION, clusterLabel: region, default: nowhere}
  - {name: TOKEN, secret: {name: shop-api, key: token}}
  overrides:
  - selector: {matchLabels: {ring: canary}}
    helm: {values: {level: debug}}
  rollout:
    stages:
    - {name: canary, selector: {matchLabels: {ring: canary}}}
    - {name: rest, maxConcurrency: 100%}
`
}

// followingGit: what is pushed is rolled out by itself, the canary first, while the hub is killed. The Git server goes away, which
// touches nothing that runs, nor keeps a secret from changing, and comes back with another push.
func followingGit(w *world) {
	w.module = "shop"
	for name, region := range regions {
		w.towline("cluster", "label", name, "region="+region)
	}
	g, h := serveGit(w.t), w.takeHooks()
	const key = "known to the Git server"
	w.secret("webhook", "webhook", key)
	w.secret("shop-api", "token", "one")
	g.push(pushed(1, 1))
	from := w.mark()
	must(w.t, w.Feed(w.t.Context(), followers(g.url), "apply", "-f", "-", "--wait", "--timeout", limit.String()).Err())
	w.shopIs(1, 1, "one")
	w.baseFirst(from)

	from = w.mark()
	second := g.push(pushed(1, 2))
	h.call("base", key, second, http.StatusAccepted)
	w.looksAt("base", second, "") // which has what it had
	h.call("shop", "of somebody else", second, http.StatusForbidden)
	h.call("shop", key, second, http.StatusAccepted)
	w.begins(2)
	w.begun(2, "c1")
	w.killHub()
	w.startedBy(w.in(2, "Succeeded", ""), "webhook", second)
	w.shopIs(1, 2, "one")
	w.canaryFirst(from)
	w.newest("base", 1)

	g.goAway()
	from = w.mark()
	w.sourceIsAway(g, second)
	w.killHub()
	w.looksAt("shop", second, "Unavailable")
	w.newest("shop", 2)
	w.shopIs(1, 2, "one")
	w.writesOnly(from)
	w.changeSecret()

	from = w.mark()
	g.come()
	third := g.push(pushed(2, 3)) // the call is lost
	w.begins(3)
	w.startedBy(w.in(3, "Succeeded", ""), "follow", third)
	w.eventually("base is rolled out, too", func() error { return w.shopRuns(2, 3, "two") })
	w.canaryFirst(from)
	for _, name := range []string{"base", "shop"} {
		w.looksAt(name, third, "")
	}
}

func (w *world) secret(name, key, value string) {
	w.t.Helper()
	must(w.t, w.Feed(w.t.Context(), value, "secret", "set", name, key+"=-").Err())
}

// sourceIsAway asks for a look at a server that does not answer.
func (w *world) sourceIsAway(g *gitServer, commit string) {
	w.t.Helper()
	r := w.CLI(w.t.Context(), "resync", "module", "shop")
	if r.Code != 1 || !strings.Contains(r.Stderr, g.address) || !strings.Contains(r.Stderr, "cannot be reached") {
		w.t.Errorf("resync while the server is away: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	w.looksAt("shop", commit, "Unavailable")
	if list := w.towline("get", "modules", "shop"); !strings.Contains(list, "its source is not followed: Unavailable") {
		w.t.Errorf("the list does not say that the source is away:\n%s", list)
	}
}

// looksAt waits until a module's source was last seen at a commit, and for the reason why it cannot be had now.
func (w *world) looksAt(module, commit, reason string) {
	w.t.Helper()
	w.eventually("module "+module+" looks at "+commit, func() error {
		m, err := w.hub.Modules.GetModule(w.t.Context(), &v1.GetModuleRequest{Name: module})
		if err != nil {
			return err
		}
		if f := m.GetModule().GetStatus().GetFollow(); f.GetResolvedRef() != "main@sha1:"+commit || f.GetReason() != reason {
			return fmt.Errorf("%v", f)
		}
		return nil
	})
}

// newest fails unless the newest rollout of a module is the one with the number, and has succeeded.
func (w *world) newest(module string, number int64) {
	w.t.Helper()
	r, err := w.hub.Rollouts.GetRollout(w.t.Context(), &v1.GetRolloutRequest{Module: module})
	must(w.t, err)
	if ro := r.GetRollout(); ro.GetNumber() != number || ro.GetStatus().GetState() != "Succeeded" {
		w.t.Errorf("the newest rollout is %s, %v, want %s/%d", ro.GetId(), ro.GetStatus(), module, number)
	}
}

// begins waits for the rollout with the number, whose predecessor has ended.
func (w *world) begins(number int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s/%d begins", w.module, number), func() error {
		r, err := w.hub.Rollouts.GetRollout(w.t.Context(), &v1.GetRolloutRequest{Module: w.module})
		if err != nil || r.GetRollout().GetNumber() == number {
			return err
		}
		return fmt.Errorf("the newest is %s", r.GetRollout().GetId())
	})
}

// startedBy: nobody was asked.
func (w *world) startedBy(r *v1.Rollout, who, commit string) {
	w.t.Helper()
	if s := r.GetStatus(); s.GetStartedBy() != who || s.GetStartReason() != "main@sha1:"+commit || s.GetSucceeded() != 4 {
		w.t.Errorf("%s was started by %s (%s), want %s (%s): %v", r.GetId(), s.GetStartedBy(), s.GetStartReason(), who, commit, s)
	}
}

// shopIs fails unless everything is in each cluster as it is for that one.
func (w *world) shopIs(base, shop int, token string) {
	w.t.Helper()
	if err := w.shopRuns(base, shop, token); err != nil {
		w.t.Error(err)
	}
}

func (w *world) shopRuns(base, shop int, token string) error {
	ctx := w.t.Context()
	for _, c := range w.Clusters {
		if err := isReady(ctx, c, "shop", "base", fmt.Sprint("example.com/base:", base)); err != nil {
			return err
		}
		if err := isReady(ctx, c, "shop", "shop", fmt.Sprint("example.com/shop:", shop)); err != nil {
			return err
		}
		at, level := c.Name+" in nowhere", "info"
		if regions[c.Name] != "" {
			at = c.Name + " in " + regions[c.Name]
		}
		if c.Name == "c1" {
			level = "debug"
		}
		if err := hasData(w, c, "ConfigMap", map[string]string{"at": at, "level": level}); err != nil {
			return err
		}
		header := base64.StdEncoding.EncodeToString([]byte("Bearer " + token))
		if err := hasData(w, c, "Secret", map[string]string{"header": header}); err != nil {
			return err
		}
	}
	return nil
}

func hasData(w *world, c *lab.Cluster, kind string, want map[string]string) error {
	o, err := c.Get(w.t.Context(), "v1", kind, "shop", "shop")
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if got, _, _ := unstructured.NestedStringMap(o.Object, "data"); !maps.Equal(got, want) {
		return fmt.Errorf("cluster %s: %s shop has %v, want %v", c.Name, kind, got, want)
	}
	return nil
}

// applied are the agent's writes of a kind in a cluster since the mark; no resource: of all kinds.
func (w *world) applied(c *lab.Cluster, since marks, resource, name string) []lab.Request {
	w.t.Helper()
	got, err := c.Audit.Since(since[c.Name], func(r lab.Request) bool {
		return r.Applies() && (resource == "" || r.Resource == resource && r.Name == name)
	})
	must(w.t, err)
	return got
}

// baseFirst: in each cluster nothing of shop was written before the pods of base could be ready.
func (w *world) baseFirst(since marks) {
	w.t.Helper()
	for _, c := range w.Clusters {
		base := w.applied(c, since, "deployments", "base")
		shop := slices.Concat(w.applied(c, since, "configmaps", "shop"), w.applied(c, since, "secrets", "shop"), w.applied(c, since, "deployments", "shop"))
		if len(base) != 1 || len(shop) != 3 {
			w.t.Fatalf("cluster %s: base was written by %v, shop by %v", c.Name, base, shop)
		}
		for _, r := range shop {
			if r.Received.Sub(base[0].Answered) < podsTake {
				w.t.Errorf("cluster %s: written before base was ready: %s; base: %s", c.Name, r, base[0])
			}
		}
	}
}

// canaryFirst: shop was written once in each cluster, in the others not before the pods of the canary could be ready.
func (w *world) canaryFirst(since marks) {
	w.t.Helper()
	var canary lab.Request
	for i, c := range w.Clusters {
		got := w.applied(c, since, "deployments", "shop")
		switch {
		case len(got) != 1:
			w.t.Fatalf("cluster %s: the Deployment was written %d times: %v", c.Name, len(got), got)
		case i == 0:
			canary = got[0]
		case got[0].Received.Sub(canary.Answered) < podsTake:
			w.t.Errorf("cluster %s: written before the canary was ready: %s; canary: %s", c.Name, got[0], canary)
		}
	}
}

// writesOnly fails unless the agents wrote these since the mark, once each: RESOURCE NAMESPACE/NAME.
func (w *world) writesOnly(since marks, want ...string) {
	w.t.Helper()
	for _, c := range w.Clusters {
		var got []string
		for _, r := range w.applied(c, since, "", "") {
			got = append(got, r.Object())
		}
		if !slices.Equal(got, want) {
			w.t.Errorf("cluster %s: written were %v, want %v", c.Name, got, want)
		}
	}
}

// changeSecret: a new value is applied to the one object of each cluster that uses it, and to nothing else.
func (w *world) changeSecret() {
	w.t.Helper()
	from, before := w.mark(), w.versions()
	w.secret("shop-api", "token", "two")
	w.eventually("the new value is there", func() error { return w.shopRuns(1, 2, "two") })
	w.writesOnly(from, "secrets shop/shop")
	after := w.versions()
	for _, object := range slices.Sorted(maps.Keys(before)) {
		if uses := strings.HasSuffix(object, " Secret shop"); uses == (before[object] == after[object]) {
			w.t.Errorf("%s had resourceVersion %s, and has %s", object, before[object], after[object])
		}
	}
	w.newest("shop", 2)
}

// versions are the resourceVersions of what base and shop have.
func (w *world) versions() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for _, c := range w.Clusters {
		for _, x := range [][3]string{{"v1", "ConfigMap", "shop"}, {"v1", "Secret", "shop"}, {"apps/v1", "Deployment", "shop"}, {"apps/v1", "Deployment", "base"}} {
			o, err := c.Get(w.t.Context(), x[0], x[1], "shop", x[2])
			must(w.t, err)
			out[c.Name+" "+x[1]+" "+x[2]] = o.GetResourceVersion()
		}
	}
	return out
}
