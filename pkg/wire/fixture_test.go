package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestWireFixtures: what hubs and agents of earlier days said to each other is understood by those of today, and so it is by them if a
// newer peer has added fields. hub TestWriteWireFixture writes the fixtures.
func TestWireFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.jsonl")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d fixtures: the test looks in the wrong place: %v", len(files), err)
	}
	for _, file := range files {
		for name, more := range map[string][]byte{"as it was": nil, "with what nobody knows": protowire.AppendString(protowire.AppendTag(nil, 9999, protowire.BytesType), "new")} {
			t.Run(filepath.Base(file)+" "+name, func(t *testing.T) { replay(t, file, more) })
		}
	}
}

// replay reads a session as its two sides do.
func replay(t *testing.T, file string, more []byte) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var held fleet.Assemblage
	seen := map[string]int{}
	for line := range bytes.Lines(data) {
		var x struct {
			ByAgent bool
			Frame   []byte
		}
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatal(err)
		}
		if x.ByAgent {
			m := &agentv1.ConnectRequest{}
			if err := proto.Unmarshal(append(x.Frame, more...), m); err != nil {
				t.Fatal(err)
			}
			heard(t, m, held, seen)
			continue
		}
		m := &agentv1.ConnectResponse{}
		if err := proto.Unmarshal(append(x.Frame, more...), m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.GetWelcome() != nil:
			seen["welcome"]++
		case m.GetIndex() != nil:
			seen["index"]++
			if held, err = wire.AssemblageFromIndex(m.GetIndex(), held); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range []string{"hello", "welcome", "index", "ack", "status"} {
		if seen[kind] == 0 {
			t.Errorf("nobody said %s: %v", kind, seen)
		}
	}
	if len(held.Syncs) != 2 {
		t.Errorf("in the end the agent holds %d modules, not 2", len(held.Syncs))
	}
}

// heard reads a frame of the agent, as the hub does.
func heard(t *testing.T, m *agentv1.ConnectRequest, held fleet.Assemblage, seen map[string]int) {
	t.Helper()
	switch {
	case m.GetHello() != nil:
		seen["hello"]++
		if h := m.GetHello(); h.GetMinProtocol() > 1 || h.GetMaxProtocol() < 1 || len(h.GetFeatures()) == 0 {
			t.Errorf("hello %v", h)
		}
	case m.GetAck() != nil:
		seen["ack"]++
		if a := m.GetAck(); a.GetCode() != "" || !bytes.Equal(a.GetDigest(), held.Digest.Bytes()) {
			t.Errorf("the answer %v is not to %s", a, held.Digest.Short())
		}
	case m.GetStatus() != nil:
		seen["status"]++
		for _, s := range m.GetStatus().GetSyncs() {
			if got, err := wire.SyncStatusFromProto(s); err != nil || got.Phase != fleet.PhaseApplied && got.Phase != fleet.PhaseHeld {
				t.Errorf("status %v: %v", s, err)
			}
		}
	}
}
