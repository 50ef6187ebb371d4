package control

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// course is a plain course of things.
type course struct {
	name           string
	room           byte
	before, course func(*interleaved)
}

// told is a word.
type told struct {
	name string
	says func(*interleaved)
}

var moduleOne, moduleTwo = wovenModules[0], wovenModules[1]

// shape is what a person puts of a module.
type shape struct {
	objects     int
	zone, named string
	staged      bool
	failure     string
	supersede   string
	also        string // one more object
}

func (w *interleaved) shapes(ref fleet.ModuleRef, x shape) {
	w.number++
	m := w.spec(ref, x.objects, x.zone, x.named)
	if x.also != "" {
		withObject(m, x.also)
	}
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnSupersede: x.supersede, OnFailure: x.failure}
	if x.staged {
		m.Spec.Rollout.Stages = []*towlinev1.Stage{{Name: "first", MaxConcurrency: "1"}}
	}
	w.call("put "+ref.Name, func(ctx context.Context) error {
		_, err := w.api.PutModule(ctx, &towlinev1.PutModuleRequest{Module: m, Take: true})
		return err
	})
}

// letsGo confirms all that is asked, and ends all holds.
func (w *interleaved) letsGo() {
	got, err := w.api.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
	w.must(err)
	for _, h := range got.GetHolds() {
		w.confirms(h)
	}
}

func (w *interleaved) bothPut() {
	w.shapes(moduleOne, shape{objects: 4})
	w.shapes(moduleTwo, shape{objects: 1})
}

func (w *interleaved) onePut() { w.shapes(moduleOne, shape{objects: 4}) }

// catalogPut has the catalog list both modules.
func (w *interleaved) catalogPut() {
	for _, ref := range wovenModules {
		w.lists(w.spec(ref, 4, "", ""))
	}
	w.putsCatalog(true, false)
}

func (w *interleaved) unlists(ref fleet.ModuleRef) {
	w.files = maps.Clone(w.files)
	delete(w.files, fileOf(ref.Name))
	_ = w.CatalogCalled(wovenCatalog)
}

func (w *interleaved) deletesCatalog(cascade bool) {
	w.call("delete the catalog", func(ctx context.Context) error {
		_, err := w.api.DeleteCatalog(ctx, &towlinev1.DeleteCatalogRequest{Project: wovenCatalog.Project, Name: wovenCatalog.Name, Cascade: cascade})
		return err
	})
}

func (w *interleaved) holdsIt(module, cluster string) {
	req := &towlinev1.PutHoldRequest{Module: module, Cluster: cluster}
	if module != "" {
		req.Project = moduleOne.Project
	}
	w.putsHold(req)
}

func (w *interleaved) failsIn(ref fleet.ModuleRef, name fleet.ClusterName, fails bool) {
	if k := w.kubes[name]; k != nil {
		k.fails[ref] = fails
	}
}

func (w *interleaved) comesUp(name fleet.ClusterName, up bool) {
	if k := w.kubes[name]; k != nil {
		k.up = up
		w.ClusterChanged(name)
	}
}

func courses() []course {
	return slices.Concat(coursesOfModules(), coursesOfRollouts(), coursesOfPlacements(), coursesOfClusters(), coursesOfCatalogs(), coursesOfRestores(), coursesOfSources(), coursesOfMoves(), coursesOfLegacy(),
		coursesOfDeletedInABackup())
}

// coursesOfModules are of modules that come and go.
func coursesOfModules() []course {
	both, lone := (*interleaved).bothPut, (*interleaved).onePut
	return []course{
		{"put in stages", 0, both, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4, staged: true}) }},
		{"put first", 0, func(*interleaved) {}, both},
		{"put in small commits", 2, both, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4}) }},
		{"put that drops most, confirmed", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 1})
			w.calms()
			w.letsGo()
		}},
		{"delete", 0, both, func(w *interleaved) { w.deletesIt(moduleOne, false) }},
		{"delete the only one, orphan", 0, lone, func(w *interleaved) { w.deletesIt(moduleOne, true) }},
		{"delete, put again", 0, both, func(w *interleaved) {
			w.deletesIt(moduleOne, false)
			w.shapes(moduleOne, shape{objects: 1})
		}},
	}
}

// coursesOfRollouts are of what people say of rollouts.
func coursesOfRollouts() []course {
	both := (*interleaved).bothPut
	return []course{
		{"pinned, put, let go", 0, both, func(w *interleaved) {
			w.steersIt("pin", moduleOne, "b")
			w.shapes(moduleOne, shape{objects: 4})
			w.calms()
			w.steersIt("unpin", moduleOne, "b")
		}},
		{"held, put, let go", 0, both, func(w *interleaved) {
			w.holdsIt("one", "")
			w.shapes(moduleOne, shape{objects: 4})
			w.calms()
			w.letsGo()
		}},
		{"goes back by itself", 0, both, func(w *interleaved) {
			w.failsIn(moduleOne, "b", true)
			w.shapes(moduleOne, shape{objects: 4, staged: true, failure: "Rollback"})
		}},
		{"a person goes back", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 3})
			w.calms()
			w.steersIt("roll back", moduleOne, "b")
		}},
		{"paused, resumed", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, staged: true})
			w.steersIt("pause", moduleOne, "b")
			w.calms()
			w.steersIt("resume", moduleOne, "b")
		}},
		{"superseded in the middle", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, staged: true})
			for range 6 {
				w.leader()
			}
			w.shapes(moduleOne, shape{objects: 4})
		}},
		{"queued", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, staged: true})
			for range 6 {
				w.leader()
			}
			w.shapes(moduleOne, shape{objects: 4, supersede: "Queue"})
		}},
	}
}

// coursesOfPlacements are of modules that leave clusters.
func coursesOfPlacements() []course {
	both, lone := (*interleaved).bothPut, (*interleaved).onePut
	return []course{
		{"leaves by its placement", 0, both, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4, zone: "y"}) }},
		{"one cluster leaves by its placement", 0, func(w *interleaved) {
			w.bothPut()
			w.isIn("b", "y", false)
		}, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4, zone: "x"}) }},
		{"one cluster leaves by its placement in small commits", 2, func(w *interleaved) {
			w.bothPut()
			w.isIn("b", "y", false)
		}, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4, zone: "x"}) }},
		{"the only one leaves by its placement, confirmed", 0, lone, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, zone: "y"})
			w.calms()
			w.letsGo()
		}},
		{"leaves by a label, comes back", 0, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, zone: "x"})
			w.shapes(moduleTwo, shape{objects: 1})
		}, func(w *interleaved) {
			w.isIn("b", "y", false)
			w.calms()
			w.isIn("b", "x", false)
		}},
		{"leaves while it is held", 0, both, func(w *interleaved) {
			w.holdsIt("one", "b")
			w.shapes(moduleOne, shape{objects: 4, zone: "y"})
			w.calms()
			w.letsGo()
		}},
	}
}

// coursesOfClusters are of clusters that come, go and change.
func coursesOfClusters() []course {
	both := (*interleaved).bothPut
	return []course{
		{"cluster removed, joins again", 0, both, func(w *interleaved) {
			w.removes("b", "delete", false)
			w.calms()
			w.joins("b")
		}},
		{"cluster removed by force in a rollout, joins again at once", 0, both, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4, staged: true})
			w.removes("b", "keep", true)
			w.joins("b")
		}},
		{"cordoned, put, uncordoned", 0, both, func(w *interleaved) {
			w.isIn("b", "x", true)
			w.shapes(moduleOne, shape{objects: 4})
			w.calms()
			w.isIn("b", "x", false)
		}},
		{"a value that is not there, and comes", 0, func(w *interleaved) {
			w.bothPut()
			w.isIn("b", "", false)
		}, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 1, named: "-${ZONE}"})
			w.calms()
			w.isIn("b", "y", false)
		}},
		{"a value changes", 0, func(w *interleaved) { w.shapes(moduleOne, shape{objects: 4, named: "-${ZONE}"}) }, func(w *interleaved) {
			w.isIn("b", "y", false)
			w.calms()
			w.letsGo()
		}},
		{"a cluster joins", 0, func(w *interleaved) {
			w.removes("c", "delete", false)
			w.calms()
			w.bothPut()
		}, func(w *interleaved) { w.joins("c") }},
		{"an agent is away", 0, both, func(w *interleaved) {
			w.comesUp("b", false)
			w.shapes(moduleOne, shape{objects: 4, zone: "y"})
			w.calms()
			w.comesUp("b", true)
		}},
	}
}

// coursesOfCatalogs are of a catalog.
func coursesOfCatalogs() []course {
	return []course{
		{"a catalog comes", 0, func(*interleaved) {}, (*interleaved).catalogPut},
		{"a catalog loses one", 0, (*interleaved).catalogPut, func(w *interleaved) { w.unlists(moduleOne) }},
		{"a catalog loses most, confirmed", 0, (*interleaved).catalogPut, func(w *interleaved) {
			w.unlists(moduleOne)
			w.unlists(moduleTwo)
			w.calms()
			w.letsGo()
		}},
		{"a catalog goes with its modules", 0, (*interleaved).catalogPut, func(w *interleaved) { w.deletesCatalog(true) }},
	}
}

// tolds are all words, each by itself, and with all that the leader has to do then beside what it is at.
func tolds() []told {
	all := slices.Concat(toldOfModules(), toldOfRollouts(), toldOfClusters(), toldOfCatalogs(), toldOfMore(), toldOfLegacy())
	for _, word := range all[:len(all):len(all)] {
		all = append(all, told{word.name + ", and all goes on", func(w *interleaved) {
			word.says(w)
			w.follows()
			for range 20 {
				if !w.leader() {
					break
				}
			}
		}})
	}
	return all
}

// toldOfModules are about modules.
func toldOfModules() []told {
	puts := func(ref fleet.ModuleRef, x shape) func(*interleaved) {
		return func(w *interleaved) { w.shapes(ref, x) }
	}
	return []told{
		{"put one", puts(moduleOne, shape{objects: 4})},
		{"put one, in y", puts(moduleOne, shape{objects: 4, zone: "y"})},
		{"put one, one object", puts(moduleOne, shape{objects: 1})},
		{"put one, queued", puts(moduleOne, shape{objects: 4, supersede: "Queue"})},
		{"put two, in y", puts(moduleTwo, shape{objects: 1, zone: "y"})},
		{"delete one", func(w *interleaved) { w.deletesIt(moduleOne, false) }},
		{"delete one, orphan", func(w *interleaved) { w.deletesIt(moduleOne, true) }},
		{"delete one, put it", func(w *interleaved) {
			w.deletesIt(moduleOne, false)
			w.shapes(moduleOne, shape{objects: 1})
		}},
		{"delete one, put it when it is gone", func(w *interleaved) {
			w.deletesIt(moduleOne, false)
			w.follows()
			for range 20 {
				if !w.leader() {
					break
				}
			}
			w.shapes(moduleOne, shape{objects: 1})
		}},
		{"delete two", func(w *interleaved) { w.deletesIt(moduleTwo, false) }},
	}
}

// toldOfRollouts are about a rollout.
func toldOfRollouts() []told {
	steers := func(verb string) func(*interleaved) {
		return func(w *interleaved) { w.steersIt(verb, moduleOne, "b") }
	}
	return []told{
		{"pause", steers("pause")},
		{"resume", steers("resume")},
		{"abort", steers("abort")},
		{"retry", steers("retry")},
		{"skip b", steers("skip")},
		{"pin b", steers("pin")},
		{"unpin b", steers("unpin")},
		{"roll back", steers("roll back")},
	}
}

// toldOfClusters are about clusters, and what else happens.
func toldOfClusters() []told {
	joins := func(name fleet.ClusterName) func(*interleaved) { return func(w *interleaved) { w.joins(name) } }
	return []told{
		{"hold one in b", func(w *interleaved) { w.holdsIt("one", "b") }},
		{"hold b", func(w *interleaved) { w.holdsIt("", "b") }},
		{"hold one", func(w *interleaved) { w.holdsIt("one", "") }},
		{"b is in y", func(w *interleaved) { w.isIn("b", "y", false) }},
		{"b is in x", func(w *interleaved) { w.isIn("b", "x", false) }},
		{"b is in none", func(w *interleaved) { w.isIn("b", "", false) }},
		{"b is cordoned", func(w *interleaved) { w.isIn("b", "x", true) }},
		{"remove b, delete", func(w *interleaved) { w.removes("b", "delete", false) }},
		{"remove b, keep", func(w *interleaved) { w.removes("b", "keep", false) }},
		{"another b", joins("b")},
		{"remove b, another b", func(w *interleaved) {
			w.removes("b", "keep", true)
			w.joins("b")
		}},
		{"another hub leads", func(w *interleaved) { w.leads() }},
		{"the rest of the leader", func(w *interleaved) {
			for range 20 {
				if !w.leader() {
					break
				}
			}
		}},
		{"agents act", func(w *interleaved) {
			for _, name := range wovenClusters {
				w.acts(name)
			}
		}},
		{"one fails in b", func(w *interleaved) { w.failsIn(moduleOne, "b", true) }},
		{"b is away", func(w *interleaved) { w.comesUp("b", false) }},
		{"lets go", (*interleaved).letsGo},
	}
}

// toldOfCatalogs are about the catalog.
func toldOfCatalogs() []told {
	return []told{
		{"catalog does not prune", func(w *interleaved) { w.putsCatalog(false, false) }},
		{"catalog is suspended", func(w *interleaved) { w.putsCatalog(true, true) }},
		{"catalog goes", func(w *interleaved) { w.deletesCatalog(false) }},
		{"catalog loses two", func(w *interleaved) { w.unlists(moduleTwo) }},
	}
}

// someOf are words that are tried in each run of the tests: what they find when a check is taken out of a commit is not found at random in a few minutes.
var someOf = map[string][]string{
	"one cluster leaves by its placement":                   {"delete two"},
	"one cluster leaves by its placement in small commits":  {"delete two"},
	"put that drops most, confirmed":                        {"another b"},
	"put first":                                             {"delete one, put it when it is gone"},
	"put in stages":                                         {"abort"},
	"delete":                                                {"remove b, keep"},
	"delete the only one, orphan":                           {"remove b, delete"},
	"the same cluster joins again at once":                  {"remove b, keep"},
	"restored from before a put, accepted":                  {"put one, one object, and all goes on"},
	"a source has most no more, confirmed":                  {"the source has something else"},
	"a catalog loses one":                                   {"put one", "catalog does not prune"},
	"a tracker is deleted":                                  {"roll back"},
	"restored from when a module went, put again, accepted": {"delete two"},
}

// TestEachWordBeforeEachCommit tries someOf all, and as many more as it can in TOWLINE_RANDOM, in an order by TOWLINE_SEED. All takes about two hours of
// one core.
func TestEachWordBeforeEachCommit(t *testing.T) {
	limit, seed := randomly(t, 0)
	type pair struct {
		course
		told
	}
	var pairs []pair
	for _, of := range courses() {
		for _, word := range tolds() {
			if limit > 0 || slices.Contains(someOf[of.name], word.name) {
				pairs = append(pairs, pair{of, word})
			}
		}
	}
	if limit > 0 {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	}
	acts := map[string][]int{}
	for i, end := 0, time.Now().Add(limit); i < len(pairs) && (limit == 0 || time.Now().Before(end)); i++ {
		p := pairs[i]
		t.Run(p.course.name+"/"+p.told.name, func(t *testing.T) {
			if acts[p.course.name] == nil {
				plain := runSingle(t, p.course, moment{}, nil)
				if plain.found != "" {
					t.Fatalf("%s\n%s", plain.found, strings.Join(plain.log, "\n"))
				}
				acts[p.course.name] = plain.acts
			}
			eachCommit(t, p.course, p.told, acts[p.course.name])
		})
	}
}

// eachCommit says a word before each commit of a course, of which it is known in which act each is. An act that commits several times may learn of the
// word in the middle, which is neither what comes of a word before it nor of one after it. Of an act of an agent it may also come to what it does when
// its report is lost.
func eachCommit(t *testing.T, of course, word told, acts []int) {
	wants := map[moment]string{}
	for i, act := range acts {
		several := act > 0 && (i > 0 && acts[i-1] == act || i+1 < len(acts) && acts[i+1] == act)
		act = max(act, -act)
		got := runSingle(t, of, moment{commit: i + 1}, word.says)
		if got.found != "" {
			t.Errorf("before commit %d: %s\n%s", i+1, got.found, strings.Join(got.log, "\n"))
			continue
		}
		same := several || slices.Contains(slices.Collect(maps.Values(wants)), got.state)
		for _, at := range []moment{{after: act}, {act: act}, {after: act - 1}, {act: act + 1}, {lost: act}} {
			if _, is := wants[at]; !is && !same {
				wants[at] = ""
				if out := runSingle(t, of, at, word.says); out.said {
					wants[at] = out.state
				}
			}
			same = same || wants[at] == got.state
		}
		if !same {
			t.Errorf("before commit %d it comes to\n%s\n\nbefore its act to\n%s\n\nand after that to\n%s\n\nand without its report to\n%s\n\n%s", i+1, got.state, wants[moment{act: act}], wants[moment{after: act}], wants[moment{lost: act}], strings.Join(got.log, "\n"))
		}
	}
}
