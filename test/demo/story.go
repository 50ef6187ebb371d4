package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// patience is how long anything may take that is expected to happen.
const patience = time.Minute

// clusterLabels are the clusters of the demo.
var clusterLabels = []struct{ name, labels string }{
	{"edge-berlin", "env=prod,region=eu"}, {"prod-dublin", "env=prod,region=eu"}, {"prod-oregon", "env=prod,region=us"},
}

type step struct {
	title string
	run   func(context.Context) error
}

// ofOne is the tale of one hub.
func (s *story) ofOne() []step {
	return []step{
		{"Start a hub and three Kubernetes control planes", s.start},
		{"Let the clusters join", s.join},
		{"Put a module on the hub", s.put},
		{"See what runs where", s.look},
		{"Change an object by hand, in one cluster", s.drift},
		{"Roll out a new version", s.update},
		{"Put the same thing again", s.again},
		{"Delete the module", s.remove},
	}
}

// tell tells the story; the first step that is not as told ends it.
func (s *story) tell(ctx context.Context) error {
	steps := s.ofOne()
	if s.hubs > 1 {
		steps = s.ofSeveral()
	}
	for i, step := range steps {
		s.out.title(i+1, len(steps), step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.title, err)
		}
	}
	s.out.line("")
	if s.keep {
		s.out.say("The module is put once more, so that there is something to look at.")
		return s.towline(ctx, "apply", "-f", s.file("shop.yaml"), "--wait", "--timeout", "60s")
	}
	return nil
}

func (s *story) start(ctx context.Context) error {
	began := time.Now()
	var names []string
	for _, c := range clusterLabels {
		names = append(names, c.name)
	}
	s.out.say("Each is an etcd, a kube-apiserver, a controller manager and a scheduler; KWOK plays the node.")
	var err error
	if s.lab, err = lab.Start(ctx, lab.Options{Names: names, Hubs: s.hubs, Dir: s.dir, Outlive: s.keep}); err != nil {
		return err
	}
	for _, h := range s.lab.Hubs {
		s.out.say("%s serves agents at %s and people at %s.", h.Name, h.Agents, h.API)
	}
	s.out.say("Up after %s.", since(began))
	return nil
}

func (s *story) join(ctx context.Context) error {
	s.out.say("A join token lets one agent in, once. The agent dials the hub; the hub gets no credentials of the cluster.")
	for i, c := range s.lab.Clusters {
		args := []string{"cluster", "join", c.Name}
		for label := range strings.SplitSeq(clusterLabels[i].labels, ",") {
			args = append(args, "--label", label)
		}
		r := s.lab.CLI(ctx, args...)
		if err := r.Err(); err != nil {
			return err
		}
		token := strings.TrimSpace(r.Stdout)
		s.out.command("towline " + shown(args))
		s.out.quote(token[:min(20, len(token))] + "…")
		c.Agent = s.lab.NewAgent(c, lab.AgentOptions{Token: token})
		if err := c.Agent.Start(); err != nil {
			return err
		}
	}
	for _, c := range s.lab.Clusters {
		ctx, cancel := context.WithTimeout(ctx, patience)
		err := s.lab.WaitState(ctx, c.Name, "Ready")
		cancel()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, c.Agent.Tail())
		}
	}
	return s.towline(ctx, "get", "clusters")
}

func (s *story) put(ctx context.Context) error {
	s.out.say("A namespace, a CRD with a custom resource of it, a Deployment, a Service and a ConfigMap, in one file, in one go.")
	return s.roll(ctx, module("1.4", "hello"), "the shop, first version", "hello")
}

// roll puts the shop, and waits until it is everywhere, and greets.
func (s *story) roll(ctx context.Context, shop, why, greeting string) error {
	if err := s.write(shop); err != nil {
		return err
	}
	began := time.Now()
	if err := s.towline(ctx, "apply", "-f", s.file("shop.yaml"), "-m", why, "--wait", "--timeout", "60s"); err != nil {
		return err
	}
	s.out.say("Ready in all clusters after %s.", since(began))
	return s.everywhere(func(c *lab.Cluster) error { return s.greets(ctx, c, greeting) })
}

func (s *story) write(shop string) error {
	return os.WriteFile(s.file("shop.yaml"), []byte(shop), 0o600)
}

// marks are how far the audit logs of the clusters are.
func (s *story) marks() (map[string]lab.Mark, error) {
	out := map[string]lab.Mark{}
	for _, c := range s.lab.Clusters {
		at, err := c.Audit.Now()
		if err != nil {
			return nil, err
		}
		out[c.Name] = at
	}
	return out, nil
}

// wroteTwo holds that each agent has written just the two objects that have changed since the marks, and that all clusters greet.
func (s *story) wroteTwo(ctx context.Context, marks map[string]lab.Mark, greeting string) error {
	return s.everywhere(func(c *lab.Cluster) error {
		writes, err := c.Audit.Since(marks[c.Name], lab.Request.Applies)
		if err == nil && len(writes) != 2 {
			err = fmt.Errorf("cluster %s: two objects have changed, but the agent wrote %v", c.Name, writes)
		}
		if err != nil {
			return err
		}
		return s.greets(ctx, c, greeting)
	})
}

func (s *story) look(ctx context.Context) error {
	if err := s.towline(ctx, "get", "modules"); err != nil {
		return err
	}
	if err := s.towline(ctx, "get", "objects", "--module", "shop"); err != nil {
		return err
	}
	return s.count(ctx, len(s.lab.Clusters)*objectsOfShop)
}

// count holds the number of objects that the hub lists, and that all are fine.
func (s *story) count(ctx context.Context, want int) error {
	r := s.lab.CLI(ctx, "get", "objects", "--module", "shop", "-o", "json")
	if err := r.Err(); err != nil {
		return err
	}
	var list struct {
		Items []struct{ Sync, Health string }
	}
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil {
		return err
	}
	if len(list.Items) != want {
		return fmt.Errorf("the hub lists %d objects, not %d", len(list.Items), want)
	}
	for _, o := range list.Items {
		if o.Sync != "Synced" || o.Health != "Healthy" {
			return fmt.Errorf("an object is %s and %s", o.Sync, o.Health)
		}
	}
	return nil
}

func (s *story) drift(ctx context.Context) error {
	c := s.lab.Clusters[1]
	s.out.say("Somebody changes the greeting in %s behind the hub's back:", c.Name)
	s.out.command("kubectl --kubeconfig " + c.Kubeconfig + ` -n shop patch configmap greeting --type merge -p '{"data":{"text":"hacked"}}'`)
	took, err := s.corrected(ctx, c)
	if err != nil {
		return err
	}
	s.out.say("The agent of %s put it back %s after the change, as the API server's audit log has it. It asked nobody.", c.Name, took.Round(time.Millisecond/10))
	if err := s.towline(ctx, "get", "trackers", "--module", "shop"); err != nil {
		return err
	}
	return s.greets(ctx, c, "hello")
}

// corrected changes the greeting and returns how long it took until the agent had put it back.
func (s *story) corrected(ctx context.Context, c *lab.Cluster) (time.Duration, error) {
	from, err := c.Audit.Now()
	if err != nil {
		return 0, err
	}
	if err := c.Merge(ctx, "v1", "ConfigMap", "shop", "greeting", `{"data":{"text":"hacked"}}`); err != nil {
		return 0, err
	}
	var took time.Duration
	err = lab.PollFor(ctx, patience, func() error {
		if err := s.greets(ctx, c, "hello"); err != nil {
			return err
		}
		requests, err := c.Audit.Since(from, func(r lab.Request) bool {
			return r.Resource == "configmaps" && r.Name == "greeting" && r.IsWrite() && r.Code < 300
		})
		if err != nil {
			return err
		}
		if len(requests) < 2 {
			return fmt.Errorf("the audit log has %v", requests)
		}
		took = requests[len(requests)-1].Answered.Sub(requests[0].Answered)
		return nil
	})
	return took, err
}

func (s *story) update(ctx context.Context) error {
	s.out.say("Another image and another greeting. Only what changed is sent and written.")
	if err := s.write(module("1.5", "good morning")); err != nil {
		return err
	}
	marks, err := s.marks()
	if err != nil {
		return err
	}
	if err := s.towline(ctx, "apply", "-f", s.file("shop.yaml"), "-m", "shop 1.5"); err != nil {
		return err
	}
	if err := s.towline(ctx, "rollout", "status", "shop", "--timeout", "60s"); err != nil {
		return err
	}
	if err := s.wroteTwo(ctx, marks, "good morning"); err != nil {
		return err
	}
	s.out.say("Two of the %d objects had changed: two writes in each cluster, by the audit logs.", objectsOfShop)
	return s.towline(ctx, "rollout", "history", "shop")
}

func (s *story) again(ctx context.Context) error {
	before, err := s.lab.Hub.Revision(ctx)
	if err != nil {
		return err
	}
	if err := s.towline(ctx, "apply", "-f", s.file("shop.yaml")); err != nil {
		return err
	}
	after, err := s.lab.Hub.Revision(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the hub wrote something: its store went from revision %d to %d", before, after)
	}
	s.out.say("No revision, no rollout, nothing written anywhere.")
	return nil
}

func (s *story) remove(ctx context.Context) error {
	s.out.say("The objects go with it, in order, and each cluster confirms.")
	if err := s.towline(ctx, "delete", "module", "shop", "--yes", "--timeout", "60s"); err != nil {
		return err
	}
	if err := s.towline(ctx, "get", "modules"); err != nil {
		return err
	}
	return s.everywhere(func(c *lab.Cluster) error {
		_, err := c.Get(ctx, "v1", "Namespace", "", "shop")
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("cluster %s: namespace shop is still there: %w", c.Name, err)
		}
		return nil
	})
}

// greets holds what the ConfigMap in a cluster says.
func (s *story) greets(ctx context.Context, c *lab.Cluster, want string) error {
	got, err := c.Get(ctx, "v1", "ConfigMap", "shop", "greeting")
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if text, _, _ := unstructured.NestedString(got.Object, "data", "text"); text != want {
		return fmt.Errorf("cluster %s: the greeting is %q, not %q", c.Name, text, want)
	}
	return nil
}

func (s *story) everywhere(f func(*lab.Cluster) error) error {
	for _, c := range s.lab.Clusters {
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

// towline runs a command, shows it and what it prints, and fails with it.
func (s *story) towline(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	s.out.command("towline " + shown(args))
	w, done := s.out.output()
	code, err := s.lab.Show(ctx, w, args...)
	done()
	if err == nil && code != 0 {
		err = fmt.Errorf("towline %s ended with exit code %d", args[0], code)
	}
	return err
}

// shown quotes arguments as a shell needs them.
func shown(args []string) string {
	out := make([]string, len(args))
	for i, arg := range args {
		if strings.ContainsAny(arg, " ,;'\"") {
			arg = "'" + arg + "'"
		}
		out[i] = arg
	}
	return strings.Join(out, " ")
}

func (s *story) file(name string) string { return filepath.Join(s.dir, name) }

func since(t time.Time) string { return time.Since(t).Round(100 * time.Millisecond).String() }
