package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// installFleet puts the module that has a bit of everything, unless it is there.
func installFleet(t *testing.T) {
	t.Helper()
	if system.CLI(t.Context(), "get", "module", "fleet").Code != 0 {
		putReady(t, fleetModule())
	}
}

// testPut is scenario 5: what the hub assembles for a cluster is there in its own API server, and the status comes back.
func testPut(t *testing.T) {
	want := objects(t, fleetNamespace, fleetFiles())
	kinds := map[string]bool{}
	for _, o := range want {
		kinds[o.GetAPIVersion()+" "+o.GetKind()] = true
	}
	if len(want) < 120 || len(kinds) < 20 {
		t.Fatalf("%d objects of %d kinds; at least 120 of 20 are to be proved", len(want), len(kinds))
	}
	from := mark(t)
	began := time.Now()
	putReady(t, fleetModule())
	t.Logf("%d objects of %d kinds are Ready in %d clusters after %s", len(want), len(kinds), len(system.Clusters), time.Since(began).Round(time.Millisecond))

	for _, c := range system.Clusters {
		// An API server whose disk is busy gives up on a request, and is asked again.
		writes := from.requests(t, c, func(r lab.Request) bool { return r.Applies() && r.Code != http.StatusGatewayTimeout })
		for _, r := range writes {
			if r.Code >= 400 {
				t.Errorf("cluster %s: a failed attempt: %s", c.Name, r)
			}
		}
		if len(writes) != len(want) {
			t.Errorf("cluster %s: %d writes for %d objects", c.Name, len(writes), len(want))
		}
		for _, o := range want {
			got, err := live(t, c, o)
			if err == nil {
				err = lab.AsWanted(o, got)
			}
			if err != nil {
				t.Errorf("cluster %s: %v", c.Name, err)
			}
		}
	}
	if err := fleetInOrder(t); err != nil {
		t.Errorf("right after the rollout has succeeded: %v", err)
	}
}

// expectFleet waits until the hub lists what the module says: each object once in each cluster, all in order.
func expectFleet(t *testing.T) {
	t.Helper()
	eventually(t, "the hub lists the fleet in order", func() error { return fleetInOrder(t) })
}

func fleetInOrder(t *testing.T) error {
	t.Helper()
	var want, got []string
	for _, c := range system.Clusters {
		for _, o := range objects(t, fleetNamespace, fleetFiles()) {
			want = append(want, c.Name+" "+lab.Label(o))
		}
	}
	for _, r := range rows(t, "fleet") {
		got = append(got, fmt.Sprintf("%s %s %s %s/%s", r.Cluster, r.Object.APIVersion, r.Object.Kind, r.Object.Namespace, r.Object.Name))
		if r.Sync != "Synced" || r.Health != "Healthy" || r.Drift != "InSync" || r.Extra {
			return fmt.Errorf("the hub lists %s", r)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Errorf("the hub lists %d objects, want %d: missing %v, unknown %v", len(got), len(want), without(want, got), without(got, want))
	}
	if s := module(t, "fleet").Status; s.Healthy != 3 || s.Updated != 3 || s.Objects != len(want) || s.Drift != 0 {
		return fmt.Errorf("the module is %+v, want all of %d objects in 3 clusters healthy", s, len(want))
	}
	return nil
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

func testPutAgain(t *testing.T) {
	installFleet(t)
	// What the first put set off may still be written.
	quiet(t)
	revision, from := module(t, "fleet").Status.Revision, mark(t)
	unwritten(t)
	if got := module(t, "fleet").Status.Revision; got != revision {
		t.Errorf("revision r%s was cut, was r%s", got, revision)
	}
	silent(t)
	from.noWrites(t)
}

// unwritten puts the fleet again and holds that the hub writes nothing. What an agent tells of its cluster, as the kinds that came with the fleet, may
// fall into the time, so it may take some tries; a write for each put would show in every one.
func unwritten(t *testing.T) {
	t.Helper()
	var err error
	for range 5 {
		var before int64
		if before, err = system.Hub.Revision(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out := put(t, fleetModule(), "--wait", "--timeout", "10s"); !strings.Contains(out, "unchanged") {
			t.Errorf("apply does not say that nothing changed:\n%s", out)
		}
		err = lab.Stays(t.Context(), 2*time.Second, func() error {
			now, err := system.Hub.Revision(t.Context())
			if err == nil && now != before {
				err = fmt.Errorf("the store was written: revision %d, was %d", now, before)
			}
			return err
		})
		if err == nil {
			return
		}
	}
	t.Error(err)
}

// silent puts the fleet again and holds that the hub sends nothing to any agent. A heartbeat may fall into the time, so
// it may take some tries; a message for each put would show in every one.
func silent(t *testing.T) {
	t.Helper()
	sent := func() (sum int64) {
		for _, c := range system.Clusters {
			sum += c.Link.Down()
		}
		return sum
	}
	var err error
	for range 10 {
		before := sent()
		put(t, fleetModule())
		err = lab.Stays(t.Context(), 500*time.Millisecond, func() error {
			if n := sent() - before; n > 0 {
				return fmt.Errorf("the hub sent %d bytes to the agents", n)
			}
			return nil
		})
		if err == nil {
			return
		}
	}
	t.Errorf("each time that an unchanged module is put: %v", err)
}

// quiet waits until the hub's store is not written for a second.
func quiet(t *testing.T) {
	t.Helper()
	eventually(t, "the hub comes to rest", func() error {
		before, err := system.Hub.Revision(t.Context())
		if err != nil {
			return err
		}
		return lab.Stays(t.Context(), time.Second, func() error {
			now, err := system.Hub.Revision(t.Context())
			if err == nil && now != before {
				err = fmt.Errorf("revision %d after %d", now, before)
			}
			return err
		})
	})
}
