package worker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
	"towline.dev/towline/test/lab"
)

// handOver is how long the API server may take to learn that a watch has ended, whose next one it has by then.
const handOver = 5 * time.Second

// audited runs the agent anew under a name of its own, and follows its watches in the API server's audit log.
func (r *rig) audited(name string) *lab.Watches {
	r.t.Helper()
	log := lab.OpenAudit(labtest.AuditLog(r.t))
	from, err := log.Now()
	if err != nil {
		r.t.Fatal(err)
	}
	r.stop()
	r.config.UserAgent = name
	r.start()
	return log.Watches(from, func(q lab.Request) bool { return q.UserAgent == name })
}

// wants is what one module lists and watches.
type wants struct{ kinds, foreign []int }

// The API server's audit log: however modules come, change and go, whatever kinds they share, and whether connections are cut or the
// agent starts again, each kind that is listed has one watch, so has each object that is only watched, and when the last module has
// gone none is left. At no time are two of one kind and selector open.
func TestWatchesInTheAuditLog(t *testing.T) {
	atRandom(t, 1, watchesAtRandom)
}

func watchesAtRandom(r *rig, rnd *rand.Rand) {
	const kinds, databases, modules, steps = 8, 4, 6, 18
	t := r.t
	r.define("databases", "Database", "v1")
	for i := range databases {
		r.create(r.group()+"/v1", "databases", r.ns, r.custom("v1", "Database", r.ns, fmt.Sprint("db", i)))
	}
	for i := range kinds {
		r.clusterScoped("customresourcedefinitions", strings.NewReplacer("gadgets", fmt.Sprintf("gadget%ds", i), "Gadget", fmt.Sprintf("Gadget%d", i)).
			Replace(strictCRD("color: {type: string}")))
	}
	r.options = append(r.options, func(o *Options) { o.linger = time.Millisecond })
	watched := r.audited("towline-agent-of-" + r.ns)

	have := map[string]wants{}
	syncs := map[string]fleet.Sync{}
	some := func(of int) (out []int) {
		out = rnd.Perm(of)[:1+rnd.IntN(of-1)]
		slices.Sort(out)
		return out
	}
	is := func(what string) {
		t.Helper()
		want := map[string]int{}
		for _, w := range have {
			for _, i := range w.kinds {
				want[fmt.Sprintf("/apis/%s/v1/gadget%ds?%s=%s&", r.group(), i, fleet.HubLabel, r.hub)] = 1
			}
			for _, i := range w.foreign {
				want[fmt.Sprintf("/apis/%s/v1/namespaces/%s/databases?&metadata.name=db%d", r.group(), r.ns, i)] = 1
			}
		}
		var got map[string]int
		defer func() {
			if t.Failed() {
				t.Logf("%s:\nopen %v\nwant %v", what, got, want)
			}
		}()
		r.eventually(what+": what is listed or watched has one watch, and nothing else of the group has any", func() bool {
			if err := watched.Read(); err != nil {
				t.Fatal(err)
			}
			got = watched.Open()
			maps.DeleteFunc(got, func(of string, _ int) bool { return len(have) > 0 && !strings.Contains(of, r.group()) })
			return maps.Equal(got, want)
		})
	}
	for step := range steps {
		module := fmt.Sprint("m", rnd.IntN(modules))
		what := fmt.Sprintf("step %d", step)
		_, there := have[module]
		switch op := rnd.IntN(10); {
		case op == 0:
			what += ": connections are cut"
			r.conns.cut()
		case op == 1:
			what += ": the agent starts again"
			r.stop()
			r.start()
			r.set(slices.Collect(maps.Values(syncs)))
		case op < 6 && there:
			what += ": " + module + " goes"
			delete(have, module)
			delete(syncs, module)
			r.set(slices.Collect(maps.Values(syncs)), r.tombstone(module, fleet.DeleteDelete))
			r.wait(module, "removed", isRemoved)
		default:
			w := wants{some(kinds), some(databases)}
			what += fmt.Sprintf(": %s is %+v", module, w)
			var list []string
			for _, i := range w.kinds {
				list = append(list, fmt.Sprintf("apiVersion: $NS.example.com/v1\nkind: Gadget%d\nmetadata: {name: %s, namespace: $NS}\nspec: {color: red}\n", i, module))
			}
			var foreign []fleet.WatchedObject
			for _, i := range w.foreign {
				db := r.database()
				db.Name = fmt.Sprint("db", i)
				foreign = append(foreign, db)
			}
			s := r.watching(r.bundle(module, nil, list...), nil, foreign...)
			have[module], syncs[module] = w, s
			r.set(slices.Collect(maps.Values(syncs)))
			r.wait(module, "ready", isReady(s))
		}
		t.Log(what)
		is(what)
	}
	var gone []fleet.Tombstone
	for module := range have {
		gone = append(gone, r.tombstone(module, fleet.DeleteDelete))
	}
	r.set(nil, gone...)
	clear(have)
	is("all modules are gone")
	for _, two := range watched.Twice(handOver) {
		t.Errorf("open at the same time: %s from %s to %s, and from %s to %s", two[0].What(), two[0].Began, two[0].Ended, two[1].Began, two[1].Ended)
	}
	t.Logf("%d watches", watched.Len())
}
