package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// That the hubs of a store are of several versions is said where one asks for the version, to people and to programs.
func TestVersionSaysThatHubsAreOfSeveral(t *testing.T) {
	hub := &fakeHub{info: &v1.GetServerInfoResponse{Version: "v2", HubId: "h", User: "ana", Role: "admin",
		Hubs:      []*v1.Hub{{Address: "a:7443", Version: "v1", Leads: true}, {Address: "b:7443", Version: "v2"}},
		Attention: &v1.Note{Code: fleet.WarnHubVersions, Facts: &v1.Facts{Detail: "v1 at a:7443, v2 at b:7443"}}}}
	if out := hub.run(t, run{}, "version").out; !strings.Contains(out, "\nHubs    the hubs of this store are of several versions (v1 at a:7443, v2 at b:7443)") {
		t.Errorf("%s", out)
	}
	if out := hub.run(t, run{}, "version", "-o", "yaml").out; !strings.Contains(out, "hubs:\n- address: a:7443\n  leads: true\n  version: v1\n- address: b:7443\n") {
		t.Errorf("%s", out)
	}
	hub.info.Attention = nil
	if out := hub.run(t, run{}, "version").out; strings.Contains(out, "Hubs") {
		t.Errorf("%s", out)
	}
}
