package etcd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
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

func TestMessagesOfTheDatabaseAreReadable(t *testing.T) {
	got := mended("writeAt failed, offset: 24576: %!w(*fs.PathError=&{write /data/db 28})")
	if want := "writeAt failed, offset: 24576: write /data/db: no space left on device"; got != want {
		t.Errorf("%q", got)
	}
}

// What etcd calls debugging has requests whole, and these have what people store.
func TestRequestsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	log := zapTo(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Debug("Apply", zap.String("raftReq", "value: canary"))
	log.Info("published")
	if got := out.String(); strings.Contains(got, "canary") || !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "published") {
		t.Errorf("logged: %s", got)
	}
}
