package cli

import (
	"bytes"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/manifest"
)

// A list that was not selected looks as if all of it were what was asked for, and an empty one as if all were well.
func TestFiltersThatSelectNothing(t *testing.T) {
	for args, want := range map[string]string{
		"get modules --cluster prod-eu-07":         "--cluster selects no modules; it is for trackers, objects, holds",
		"get clusters --module shop":               "--module selects no clusters",
		"get clusters --health Degraded":           "--health selects no clusters",
		"get trackers --drift":                     "--drift selects no trackers; it is for objects",
		"get rollouts --cluster prod-eu-07":        "--cluster selects no rollouts",
		"get users -l team=web":                    "--selector selects no users",
		"get module shop -l team=web":              "get modules takes names or -l, not both",
		"get objects --drift Conflict":             "--drift takes its state after an equals sign: --drift=Conflict",
		"get objects --drift=Drfted":               "--drift=Drfted: there is no such state; did you mean Drifted?",
		"get objects --health Broken":              "--health=Broken: there is no such state; use one of Healthy, ",
		"get objects --health degraded --drift=xx": "--drift=xx: there is no such state",
	} {
		got := fullHub().run(t, run{}, strings.Fields(args)...)
		if got.code != exitUsage || !strings.Contains(got.err, want) || got.out != "" {
			t.Errorf("towline %s: exit %d, %q, %q; want %q", args, got.code, got.out, got.err, want)
		}
	}
}

func TestFiltersByWhatDoesNotExist(t *testing.T) {
	hub := fullHub()
	hub.objects, hub.trackers, hub.rollouts, hub.revisions, hub.holds = nil, nil, nil, nil, nil
	for args, want := range map[string]string{
		"get objects --drift --module shpo":        "module shpo: there is none in project default",
		"get objects --cluster prod-eu-7":          "cluster prod-eu-7: there is none",
		"rollout history shpo":                     "module shpo: there is none in project default",
		"get rollouts --module shpo":               "module shpo: there is none in project default",
		"get revisions shpo":                       "module shpo: there is none in project default",
		"get trackers shpo":                        "module shpo: there is none in project default",
		"get trackers --cluster prod-eu-7 -o json": "cluster prod-eu-7: there is none",
		"get holds --cluster prod-eu-7":            "cluster prod-eu-7: there is none",
		"get holds --module shpo":                  "module shpo: there is none in project default",
	} {
		got := hub.run(t, run{}, strings.Fields(args)...)
		if got.code != exitFailed || !strings.Contains(got.err, want) {
			t.Errorf("towline %s: exit %d, %q; want %q", args, got.code, got.err, want)
		}
	}
	if got := hub.run(t, run{}, "get", "objects", "--drift", "--module", "shop"); got.code != exitOK || !strings.HasPrefix(got.err, "No objects in project default drift now") {
		t.Errorf("a module without drift: exit %d, %q", got.code, got.err)
	}
}

// A wait goes into logs: that the hub is away is said there, too, and not at every try.
func TestLostHubIsSaidInLogs(t *testing.T) {
	done := surfaceRollout()
	done.Status.State = stateSucceeded
	for _, verb := range []string{"wait", "status"} {
		hub := &fakeHub{breaks: 2, watch: []*v1.WatchRolloutResponse{{Rollout: surfaceRollout()}, {Rollout: done, Ended: true}}}
		got := hub.run(t, run{}, "rollout", verb, "shop")
		if strings.Count(got.err, "trying again") != 1 {
			t.Errorf("%s: %q", verb, got.err)
		}
	}
}

func TestRenderOfAModuleWithANameLikeARevision(t *testing.T) {
	hub := &fakeHub{revisions: []*v1.Revision{{Number: 3}}}
	hub.run(t, run{}, "render", "web-r2", "--revision", "r3")
	if r := asked[*v1.GetRevisionObjectsRequest](hub); r.GetModule() != "web-r2" || r.GetNumber() != 3 {
		t.Errorf("asked for %s r%d", r.GetModule(), r.GetNumber())
	}
}

// TestYAMLSaysWhatTheObjectHas: what is printed as YAML reads back to the object, also a text with characters that end a line of YAML, or that
// may not stand in it, and a key that is longer than YAML looks for one.
func TestYAMLSaysWhatTheObjectHas(t *testing.T) {
	const text = "a \u2028  b \u0085  c\u007f"
	object := manifest.Canonical(map[string]any{"data": map[string]any{"a": text, strings.Repeat("k", 2000): "long"}})
	rendered := (&fakeHub{revisions: []*v1.Revision{{Number: 3}}, rendered: [][]byte{object}}).run(t, run{}, "render", "shop")
	var live bytes.Buffer
	if err := (&app{Streams: Streams{Out: &live}}).writeLive(&getOptions{}, []liveObject{{Cluster: "east", Module: "shop", Object: object}}); err != nil {
		t.Error(err)
	}
	for what, printed := range map[string]string{"render": rendered.out, "get --live": live.String()} {
		var got struct{ Data map[string]string }
		if err := yaml.Unmarshal([]byte(printed), &got); err != nil || got.Data["a"] != text || got.Data[strings.Repeat("k", 2000)] != "long" {
			t.Errorf("%s: %v, %q, printed %q", what, err, got.Data["a"], printed+rendered.err)
		}
	}
}
