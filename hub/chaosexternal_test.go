package hub_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// spec is the module as it is put.
func (c *chaos) spec(name string, w want) *towlinev1.Module {
	m := plain(name, w)
	if !w.external {
		m.Spec.Rollout = c.strategy()
	}
	if name == modules[1] && c.rand.IntN(2) == 0 { // of the same project, and never the other way round
		m.Spec.DependsOn = []*towlinev1.Dependency{{Module: modules[0]}}
	}
	return m
}

// plain is the module, which moves everywhere at once, or as another program says.
func plain(name string, w want) *towlinev1.Module {
	m := random(name, w.objects, w.zone)
	if w.named != "" {
		m.Spec.Placement = &towlinev1.Placement{Clusters: strings.Fields(w.named)}
	}
	if w.tolerates {
		m.Spec.Placement.Tolerations = []*towlinev1.Toleration{{Key: "closed"}}
	}
	if w.external {
		m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	}
	return m
}

// given hands a module over to another program, which wants it where it is.
func (c *chaos) given(name string, w want) want {
	now := c.now()
	w.external, w.zone, w.named = true, "", ""
	if old, ok := now.modules[name]; ok {
		w.in = strings.Join(slices.DeleteFunc(slices.Clone(clusters), func(cluster string) bool { return !now.takes(old, cluster) }), " ")
	}
	return w
}

// external are the modules that another program assigns.
func (x wish) external() (names []string) {
	for _, name := range modules {
		if x.modules[name].external {
			names = append(names, name)
		}
	}
	return names
}

func (x wish) anyExternal() bool { return len(x.external()) > 0 }

// program has the program that assigns a module give it to a cluster, or take it from there.
func (c *chaos) program(cluster string) {
	now := c.now()
	if !now.anyExternal() {
		return
	}
	name := pickOf(c, now.external())
	w := now.modules[name]
	in := strings.Fields(w.in)
	if slices.Contains(in, cluster) {
		in = slices.DeleteFunc(in, func(s string) bool { return s == cluster })
	} else {
		in = append(in, cluster)
	}
	w.in = strings.Join(in, " ")
	c.wish(func(x *wish) { x.modules[name] = w })
	c.note("%s is to be in %q: %v", name, w.in, c.assign(name, w, cluster))
}

// assign has one cluster have the newest revision of a module, or nothing of it. Copies of what the program asked for before arrive at
// the same time, or later.
func (c *chaos) assign(name string, w want, cluster string) error {
	ask, err := c.asking(name, w, cluster)
	if err != nil {
		return err
	}
	copies := []func() error{ask}
	for range min(c.rand.IntN(3), len(c.asked)) {
		copies = append(copies, pickOf(c, c.asked))
	}
	if c.rand.IntN(3) == 0 {
		copies = append(copies, ask)
	}
	errs := make([]error, len(copies))
	var wg sync.WaitGroup
	for i, again := range copies {
		wg.Go(func() { errs[i] = again() })
	}
	wg.Wait()
	for _, err := range errs {
		if errors.Is(err, fleet.ErrUnavailable) {
			c.found = append(c.found, fmt.Sprintf("what is asked for %s in %s is not answered: %v", name, cluster, err))
		}
	}
	if c.asked = append(c.asked, ask); len(c.asked) > 20 {
		c.asked = c.asked[1:]
	}
	return errs[0]
}

// asking is a request that says what a module is to be in a cluster by now, whenever it arrives.
func (c *chaos) asking(name string, w want, cluster string) (func() error, error) {
	id := strconv.FormatUint(c.rand.Uint64(), 36)
	project, module := split(name)
	m, err := c.Modules.GetModule(c.ctx, &towlinev1.GetModuleRequest{Project: project, Name: module})
	if err != nil {
		return nil, err
	}
	uid := m.GetModule().GetMetadata().GetUid()
	if !strings.Contains(w.in, cluster) {
		return func() error {
			_, err := c.Assignments.DeleteAssignments(c.ctx, &towlinev1.DeleteAssignmentsRequest{Project: project, Module: module, ModuleUid: uid, RequestId: id, Clusters: []string{cluster}})
			return err
		}, nil
	}
	got, err := c.Assignments.ListAssignments(c.ctx, &towlinev1.ListAssignmentsRequest{Project: project, Module: module})
	return func() error {
		_, err := c.Assignments.PutAssignments(c.ctx, &towlinev1.PutAssignmentsRequest{Project: project, Module: module, ModuleUid: uid, RequestId: id, Revision: got.GetNewestRevision(), Clusters: []string{cluster}})
		return err
	}, err
}

// assignAll assigns what is not yet as the program wants it.
func (c *chaos) assignAll(name string, w want) {
	project, module := split(name)
	got, err := c.Assignments.ListAssignments(c.ctx, &towlinev1.ListAssignmentsRequest{Project: project, Module: module})
	must(c.t, err)
	for _, cluster := range clusters {
		i := slices.IndexFunc(got.GetAssignments(), func(a *towlinev1.Assignment) bool { return a.GetCluster() == cluster })
		wanted := strings.Contains(w.in, cluster)
		if wanted != (i >= 0) || wanted && got.GetAssignments()[i].GetRevision() != got.GetNewestRevision() {
			c.note("%s in %s is to be %v: %v", name, cluster, wanted, c.assign(name, w, cluster))
		}
	}
}
