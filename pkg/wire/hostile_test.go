package wire

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// allocated is how many bytes f made.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Two bytes are an empty message, and compress to nothing: what is not allowed is refused before it is made.
func TestListOfNothingIsRefusedBeforeItIsMade(t *testing.T) {
	packed := Compress(bytes.Repeat([]byte{1<<3 | 2, 0}, MaxContentBytes/2))
	in := &agentv1.SyncStatus{Module: "default/web", Bundle: make([]byte, 32), Phase: "Applied", ExtrasZstd: packed}
	const most = 64 << 20
	var err error
	if n := allocated(func() { _, err = SyncStatusFromProto(in) }); err == nil || n > most {
		t.Errorf("%d bytes on the wire: %v after %d MiB were allocated, at most %d may be", len(packed), err, n>>20, most>>20)
	}
}

// What an agent says that an object is called is shown to people, in lists of all clusters: it is no longer than a name.
func TestIdentityIsNoLongerThanAName(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 1<<20), "a\x1b[2J", "a\nb"} {
		in := &agentv1.SyncStatus{Module: "default/web", Bundle: make([]byte, 32), Phase: "Applied",
			Extras: []*agentv1.ExtraObject{{Version: "v1", Kind: "ConfigMap", Name: name}}}
		if s, err := SyncStatusFromProto(in); err == nil {
			t.Errorf("a name of %d bytes, %.20q, is taken", len(name), s.Extras[0].ID.Name)
		}
	}
}
