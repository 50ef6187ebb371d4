package e2etest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// Random is a lab under random operations: what people and machines do to it, what is down meanwhile, and what was done, for the case that it
// turns out badly.
type Random struct {
	*lab.Lab
	T    *testing.T
	Rand *rand.Rand
	// Down brings back what is down or held, by what that is.
	Down map[string]func()
	// Done counts operations by their names.
	Done map[string]int

	journal []string // what was done since the last quiet point
	lies    Lies
}

// NewRandom draws from a seed. The stream tells one test of the same seed from another.
func NewRandom(t *testing.T, l *lab.Lab, seed, stream uint64) *Random {
	t.Logf("TOWLINE_SEED=%d", seed)
	return &Random{Lab: l, T: t, Rand: rand.New(rand.NewPCG(seed, stream)), Down: map[string]func(){}, Done: map[string]int{}, lies: Lies{}}
}

// Pick draws one of a list.
func Pick[T any](r *Random, list []T) T { return list[r.Rand.IntN(len(list))] }

// AnyCluster draws one.
func (r *Random) AnyCluster() *lab.Cluster { return Pick(r, r.Clusters) }

// Must ends the run where an error shows that the test itself cannot go on.
func (r *Random) Must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// Pause waits, unless the test ends.
func (r *Random) Pause(d time.Duration) { Pause(r.T.Context(), d) }

// Pause waits, unless the context ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Note remembers an operation.
func (r *Random) Note(name, format string, args ...any) {
	r.Done[name]++
	r.Write(name + " " + fmt.Sprintf(format, args...))
}

// Write remembers what is no operation.
func (r *Random) Write(line string) {
	r.journal = append(r.journal, time.Now().UTC().Format("15:04:05.000 ")+line)
}

// Journal is what was done since the last quiet point.
func (r *Random) Journal() string {
	return "since the last quiet point:\n  " + strings.Join(r.journal, "\n  ")
}

// Quiet forgets what was done and what was said: all is as it has to be.
func (r *Random) Quiet() { r.journal, r.lies = nil, Lies{} }

// Fatal ends the run with what was done and what the hub says.
func (r *Random) Fatal(format string, args ...any) {
	r.T.Helper()
	for _, what := range []string{"clusters", "modules", "revisions", "rollouts", "trackers", "objects", "holds"} {
		said := r.CLI(context.Background(), "get", what)
		r.T.Logf("towline get %s\n%s%s", what, said.Stdout, said.Stderr)
	}
	r.T.Fatalf("%s\n%s", fmt.Sprintf(format, args...), r.Journal())
}

// Lying ends the run when the hub keeps saying what is not so.
func (r *Random) Lying(lies []string, lag time.Duration) {
	r.T.Helper()
	if lie := r.lies.Kept(time.Now(), lies, lag); lie != "" {
		r.Fatal("for %s the hub says what is not so: %s", lag, lie)
	}
}

// Bring brings back one of what is down whose name begins so, if there is any.
func (r *Random) Bring(prefix string) bool {
	which := slices.DeleteFunc(slices.Sorted(maps.Keys(r.Down)), func(at string) bool { return !strings.HasPrefix(at, prefix) })
	if len(which) == 0 {
		return false
	}
	at := Pick(r, which)
	r.Note("repair", "%s", at)
	r.end(at)
	return true
}

// BringAll brings back all, in the order of the names.
func (r *Random) BringAll() {
	for _, at := range slices.Sorted(maps.Keys(r.Down)) {
		r.Write("repair " + at)
		r.end(at)
	}
}

func (r *Random) end(at string) {
	if back := r.Down[at]; back != nil {
		delete(r.Down, at)
		back()
	}
}

// Reach reports whether the API server of a cluster can be asked.
func (r *Random) Reach(c *lab.Cluster) bool { return r.Down["server "+c.Name] == nil }

// Asleep reports that an agent is paused. That is noticed only after its heartbeats are missed.
func (r *Random) Asleep(a *lab.Agent) bool { return r.Down["asleep "+a.Name] != nil }

// EndAgent ends an agent. Every other time it stays away until it is brought back.
func (r *Random) EndAgent(what string, end func(*lab.Agent)) bool {
	a := r.AnyCluster().Agent
	if !a.Running() {
		return false
	}
	r.Note(what, "%s", a.Name)
	r.Wake(a)
	end(a)
	back := func() { r.Must(a.Start()) }
	if r.Rand.IntN(2) == 0 {
		back()
		return true
	}
	r.Down["agent "+a.Name] = back
	return true
}

// KillAgent kills an agent.
func (r *Random) KillAgent() bool { return r.EndAgent("kill agent", func(a *lab.Agent) { a.Kill() }) }

// PauseAgent stops an agent where it is until it is brought back.
func (r *Random) PauseAgent() bool {
	a := r.AnyCluster().Agent
	if !a.Running() || r.Asleep(a) {
		return false
	}
	r.Note("pause agent", "%s", a.Name)
	a.Pause()
	r.Down["asleep "+a.Name] = a.Resume
	return true
}

// Wake lets a paused agent go on.
func (r *Random) Wake(a *lab.Agent) { r.end("asleep " + a.Name) }

// KillHub kills the hub and starts it again.
func (r *Random) KillHub() bool {
	r.Note("kill hub", "")
	r.Hub.Kill()
	r.Must(r.Hub.Start(r.T.Context()))
	return true
}

// Cut breaks the way between an agent and the hub until it is brought back.
func (r *Random) Cut() bool {
	c := r.AnyCluster()
	if r.Down["link "+c.Name] != nil {
		return false
	}
	r.Note("cut", "%s", c.Name)
	c.Link.Cut()
	r.Down["link "+c.Name] = c.Link.Restore
	return true
}

// KillServer kills the API server of a cluster until it is brought back.
func (r *Random) KillServer() bool { return r.KillParts("apiserver") }

// KillParts kills parts of a control plane without which its API server answers nobody. They are back when it answers.
func (r *Random) KillParts(parts ...string) bool {
	c := r.AnyCluster()
	if !r.Reach(c) {
		return false
	}
	r.Note("kill "+parts[0], "%s", c.Name)
	for _, part := range parts {
		r.Must(c.Part(r.T.Context(), part, "kill"))
	}
	r.Down["server "+c.Name] = func() {
		for _, part := range parts {
			r.Must(c.Part(r.T.Context(), part, "start"))
		}
		r.Must(lab.PollFor(r.T.Context(), Patience, func() error {
			_, err := c.Get(r.T.Context(), "v1", "Namespace", "", "default")
			return err
		}))
	}
	return true
}

// Row is one of get objects.
type Row struct {
	Cluster, Module     string
	Revision            json.Number
	Sync, Health, Drift string
	Reason, Message     string
	Extra               bool
	Object              struct{ APIVersion, Kind, Namespace, Name string }
}

// Rows reads all.
func (r *Random) Rows() []Row {
	r.T.Helper()
	var list struct{ Items []Row }
	said := r.CLI(r.T.Context(), "get", "objects", "-o", "json")
	r.Must(said.Err())
	r.Must(json.Unmarshal([]byte(said.Stdout), &list))
	return list.Items
}

// Number is that of its revision.
func (r Row) Number() int {
	n, _ := r.Revision.Int64()
	return int(n)
}

// Fine reports that the hub says that all is well with the object.
func (r Row) Fine() bool {
	return !r.Extra && r.Sync == "Synced" && r.Health == "Healthy" && r.Drift == "InSync"
}

// Unsettled reports that for a while after its start the agent does not know whether the object is there.
func (r Row) Unsettled() bool {
	return r.Reason == "Unsettled" || strings.HasPrefix(r.Message, "is not there, but a write of it")
}

func (r Row) String() string {
	return fmt.Sprintf("%s: %s r%s: %s %s is %s, %s, %s (extra %t) %s %s", r.Cluster, r.Module, r.Revision, r.Object.Kind, r.Object.Name,
		r.Sync, r.Health, r.Drift, r.Extra, r.Reason, r.Message)
}

// Owner is the module whose marks an object carries; empty: none.
func Owner(o *unstructured.Unstructured) string {
	if o == nil || o.GetLabels()["towline.dev/hub"] == "" {
		return ""
	}
	mark, _, _ := strings.Cut(o.GetAnnotations()["towline.dev/owner"], "@")
	return mark[strings.IndexByte(mark, '/')+1:]
}
