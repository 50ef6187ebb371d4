package etcd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// etcd repeats some complaints without a pause. They must not fill a disk.
func TestRepeatedComplaintsAreFew(t *testing.T) {
	var out bytes.Buffer
	log := zapTo(slog.New(slog.NewTextHandler(&out, nil)))
	for range 10_000 {
		log.Warn("failed to publish")
	}
	log.Warn("something else")
	if n := strings.Count(out.String(), "failed to publish"); n == 0 || n > 100 {
		t.Errorf("%d lines of one complaint", n)
	}
	if !strings.Contains(out.String(), "something else") {
		t.Error("another complaint is lost")
	}
}
