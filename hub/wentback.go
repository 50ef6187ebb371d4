package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// wentBackFile is in the data directory of a hub that found an older copy, or another store, in the place of its etcd of one's own. Who starts
// the hub again cannot know that, and what was paused or aborted since would go on before the store can be marked as restored.
const wentBackFile = "etcd-went-back.json"

// wentBack is what the file holds.
type wentBack struct {
	At     time.Time `json:"at"`
	Why    string    `json:"why"`
	Remedy string    `json:"remedy"`
	// Restored is when the store of before was restored last; zero: it never was.
	Restored time.Time `json:"restored"`
}

const wentBackRemedy = "stop all hubs, restore etcd if that is not done, mark the store in it with towline-hub restore --etcd-endpoints, and start the hubs: each takes its file away when the store is marked. " +
	"If etcd was not restored, and what it lost is to count as never said, or an endpoint was wrong and is mended, remove the file"

// noteWentBack leaves the file. A hub that cannot says so, and ends as well: nothing better is to be had from a disk that takes no file.
func (o Options) noteWentBack(why error, last store.Reader) {
	if len(o.EtcdEndpoints) == 0 {
		return
	}
	path := filepath.Join(o.DataDir, wentBackFile)
	note := wentBack{At: time.Now(), Why: why.Error(), Remedy: wentBackRemedy, Restored: lastRestore(last)}
	if err := note.write(path); err != nil {
		o.Log.Error("hub: that etcd went back cannot be noted: start no hub before the store is marked, with towline-hub restore --etcd-endpoints", "file", path, "error", err)
		return
	}
	o.Log.Error("hub: etcd went back, and no hub starts beside this file", "file", path, "remedy", wentBackRemedy)
}

// lastRestore is when the store was marked as restored last; zero: it never was.
func lastRestore(r store.Reader) time.Time {
	rec, _, ok := store.Get[*storev1.Restore](r, store.RestoreKey)
	if !ok {
		return time.Time{}
	}
	return rec.GetAt().AsTime()
}

// write has the file whole or not at all.
func (n wentBack) write(path string) error {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+wentBackFile+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// heedWentBack refuses a store that went back under this hub and was not marked as restored since. That is told by the store and not by who
// marked it: hubs that share an etcd have a file each, and one mark is for all.
func (o Options) heedWentBack(ctx context.Context, s *engine.Engine) error {
	if len(o.EtcdEndpoints) == 0 {
		return nil
	}
	path := filepath.Join(o.DataDir, wentBackFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	var note wentBack
	if err := json.Unmarshal(b, &note); err != nil {
		return fleet.Errorf(fleet.ErrPrecondition, "%s: etcd went back while this hub ran, and the file cannot be read (%v): mark the store with towline-hub restore --etcd-endpoints if it was restored, then remove the file", path, err)
	}
	marked := false
	if err := s.View(ctx, 0, func(r store.Reader) error {
		marked = lastRestore(r).After(note.Restored)
		return nil
	}); err != nil {
		return err
	}
	if !marked {
		return fleet.Errorf(fleet.ErrPrecondition, "%s: etcd went back at %s while this hub ran, and the store in it is not marked as restored: what was paused or aborted since would go on. %s. What was seen: %s",
			path, note.At.UTC().Format(time.RFC3339), wentBackRemedy, note.Why)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	o.Log.Info("etcd went back while this hub ran, and was marked as restored since", "at", note.At, "file", path)
	return nil
}
