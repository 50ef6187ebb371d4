package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// The API server writes a long line in pieces, so that a mark may fall into one: its request came before the mark, and what follows is read.
func TestAuditMarkWithinALine(t *testing.T) {
	const (
		before = `{"stage":"ResponseComplete","verb":"get","requestURI":"/before"}` + "\n"
		after  = `{"stage":"ResponseComplete","verb":"get","requestURI":"/after"}` + "\n"
	)
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	audit := OpenAudit(path)
	read := func(from Mark) (uris []string, next Mark) {
		t.Helper()
		requests, next, err := audit.Follow(from, func(Request) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			uris = append(uris, r.URI)
		}
		return uris, next
	}
	for cut := 1; cut <= len(before); cut++ {
		write(before[:cut])
		mark, err := audit.Now()
		if err != nil {
			t.Fatal(err)
		}
		if got, next := read(mark); len(got) != 0 || next != mark {
			t.Fatalf("cut at %d: half a line gives %q and the mark %d after %d", cut, got, next, mark)
		}
		write(before + after[:20])
		got, next := read(mark)
		if len(got) != 0 {
			t.Fatalf("cut at %d: what came before the mark is read: %q", cut, got)
		}
		write(before + after)
		if got, end := read(next); len(got) != 1 || got[0] != "/after" || end != Mark(len(before+after)) {
			t.Fatalf("cut at %d: %q up to %d", cut, got, end)
		}
		if got, _ := read(mark); len(got) != 1 || got[0] != "/after" {
			t.Fatalf("cut at %d: at once %q", cut, got)
		}
	}
	if got, _ := read(0); len(got) != 2 {
		t.Errorf("from the beginning %q", got)
	}
}
