package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// keptRollouts is how many ended rollouts of a module are kept for `rollout history`.
const keptRollouts = 20

// keptRequests is how long a verb or an answer with a request_id is kept at least, so that a repeat is known.
const keptRequests = 7 * 24 * time.Hour

// keptAnswers is how long an answer is kept that nobody can ask for again, so that whoever waits for it gets it.
const keptAnswers = time.Hour

// collectLoop trims histories and collects blobs now and then, and soon while the store is full.
func (c *Controller) collectLoop(ctx context.Context) {
	tick := time.NewTicker(c.o.CollectEvery)
	defer tick.Stop()
	hurry := time.NewTicker(c.o.CollectEvery / hurryShare)
	defer hurry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hurry.C:
			if c.o.Store.Full() == nil {
				continue
			}
		case <-tick.C:
		}
		// A bug in the middle deletes nothing: what is garbage is known only when all that is live is.
		if err := c.round("collect garbage", func() error { return c.collect(ctx) }); err != nil && ctx.Err() == nil {
			c.o.Log.Warn("garbage not collected", "error", err)
		}
	}
}

// hurryShare is how often a full store is looked at in the time between two collections.
const hurryShare = 60

func (c *Controller) collect(ctx context.Context) error {
	err := c.trim(ctx)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var unread unreadBundles
	n, err := c.o.Store.Blobs().Collect(ctx, func(yield func(fleet.Digest)) func([]byte) bool {
		if err := c.view(ctx, func(r store.Reader) error {
			unread, err = c.live(ctx, r, yield)
			return err
		}); err != nil {
			// What is live is not known to the end, so nothing may be deleted: this ends the sweep.
			stop(fmt.Errorf("live blobs: %w", err))
		}
		if len(unread) == 0 {
			return nil
		}
		return neverListed
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	c.unreadBundles.Store(int64(len(unread)))
	if n > 0 {
		c.o.Log.Info("blobs collected", "deleted", n)
	}
	return errors.Join(err, unread.err())
}

// unreadBundles are those that cannot be read, with one of the records that refer to each.
type unreadBundles map[fleet.Digest]string

// err names them; nil: there are none.
func (u unreadBundles) err() error {
	if len(u) == 0 {
		return nil
	}
	var names []string
	for d, key := range u {
		names = append(names, d.Short()+" ("+key+")")
	}
	slices.Sort(names)
	return fleet.Errorf(fleet.ErrCorrupt, "bundles cannot be read, and what they may list is kept: %s; put their modules again, or delete them", fleet.Some(names, maxUnreadNamed))
}

// maxUnreadNamed is how many of them an error names.
const maxUnreadNamed = 10

// UnreadBundles is how many bundles the newest sweep could not read.
func (c *Controller) UnreadBundles() int64 { return c.unreadBundles.Load() }

// neverListed reports that no bundle can list the content: it is files of a source, or a bundle itself. One that is neither may be an
// object of a bundle which cannot be read.
func neverListed(content []byte) bool {
	return artifact.Is(content) || assemble.IsBundle(content)
}

// live names every blob that a module, a revision or an assignment refers to, but for what bundles list that cannot be read: it
// returns those.
func (c *Controller) live(ctx context.Context, r store.Reader, yield func(fleet.Digest)) (unreadBundles, error) {
	bundles := map[fleet.Digest]string{}                                                  // and a record that refers to each
	store.Scan(r, store.ModulePrefix, func(m *storev1.ModuleRecord, _ store.Entry) bool { // its revision may not be cut yet
		if d, err := fleet.ParseDigest(m.GetModule().GetSpec().GetSource().GetUpload().GetDigest()); err == nil {
			yield(d)
		}
		return true
	})
	store.Scan(r, store.RevisionPrefix, func(rev *storev1.RevisionRecord, e store.Entry) bool {
		yield(record.Digest(rev.GetArtifact()))
		yield(record.Digest(rev.GetPolicies()))
		for _, v := range record.Variants(rev) {
			yield(record.Digest(v.GetPolicies()))
			bundles[record.Digest(v.GetBundle())] = e.Key
		}
		return true
	})
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		for _, g := range d.GetBefore() { // only the lists are needed
			yield(record.Digest(g.GetBundle()))
		}
		if s := d.GetSync(); s != nil {
			yield(record.Digest(s.GetPolicies()))
			bundles[record.Digest(s.GetBundle())] = e.Key
		}
		if d.GetTombstone() != nil {
			yield(leavingBundle(r, e.Key))
		}
		return true
	})
	delete(bundles, fleet.Digest{}) // of an assignment that is damaged: nobody knows what it lists
	unread := unreadBundles{}
	for d, key := range bundles {
		yield(d)
		b, err := c.o.Bundles.Get(ctx, d)
		switch {
		case errors.Is(err, fleet.ErrCorrupt), errors.Is(err, fleet.ErrNotFound), errors.Is(err, fleet.ErrInvalid):
			unread[d] = key
			continue
		case err != nil:
			return nil, err
		}
		for _, e := range b.Entries {
			yield(e.Digest)
		}
	}
	return unread, nil
}

// leavingBundle lists what a cluster has of a module that leaves it, until its agent says more. The agent named it: it may
// be anything, and only its list is needed.
func leavingBundle(r store.Reader, key string) fleet.Digest {
	cluster, ref, _ := store.SplitClusterModule(key)
	o, _, _ := store.Get[*storev1.ObservedRecord](r, store.ObservedKey(cluster, ref))
	return record.Digest(o.GetStatus().GetBundle())
}

// trim keeps the newest revisions and rollouts of every module. A revision that a cluster is assigned, that an active
// rollout moves to, that succeeded last, or whose placement is in force, is never trimmed.
func (c *Controller) trim(ctx context.Context) error {
	puts := map[string]proto.Message{}
	now := time.Now()
	err := c.view(ctx, func(r store.Reader) error {
		assigned, leaves := record.Assigned(r)
		store.Scan(r, store.ModulePrefix, func(m *storev1.ModuleRecord, e store.Entry) bool {
			ref, ok := store.SplitModule(e.Key)
			if !ok {
				return true
			}
			limit := int(m.GetModule().GetSpec().GetRollout().GetRevisionHistoryLimit())
			if limit <= 0 {
				limit = rollout.DefaultRevisionHistoryLimit
			}
			trimBefore(r, ref, m, leaves[ref], puts)
			trimRevisions(r, ref, limit, m.GetFirstRevision(), assigned[ref], puts)
			trimRollouts(r, ref, m.GetPutGeneration(), puts)
			trimVerbs(r, ref, m.GetFirstRollout(), now, puts)
			trimAnswers(r, ref, now, puts)
			return true
		})
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.write(ctx, puts); err != nil {
		return err
	}
	if err := c.trimVariants(ctx); err != nil {
		return err
	}
	return c.trimForgotten(ctx)
}

// trimForgotten drops what is recorded of modules in clusters that the hub does not have. A step that assigned a cluster in the
// moment in which that was forgotten leaves such records, and whoever joins under the name would get what they say.
func (c *Controller) trimForgotten(ctx context.Context) error {
	left := map[fleet.ClusterName][]string{}
	err := c.view(ctx, func(r store.Reader) error {
		there := map[fleet.ClusterName]bool{}
		r.Scan(store.ClusterPrefix, func(e store.Entry) bool {
			there[fleet.ClusterName(strings.TrimPrefix(e.Key, store.ClusterPrefix))] = true
			return true
		})
		for _, d := range r.Damaged(store.ClusterPrefix) {
			there[fleet.ClusterName(strings.TrimPrefix(d.Key, store.ClusterPrefix))] = true
		}
		for _, prefix := range []string{store.DesiredPrefix, store.ObservedPrefix} {
			r.Scan(prefix, func(e store.Entry) bool {
				if name, _, ok := store.SplitClusterModule(e.Key); ok && !there[name] {
					left[name] = append(left[name], e.Key)
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name, keys := range left {
		for chunk := range slices.Chunk(keys, store.MaxOps) {
			if err := c.update(ctx, func(w store.Writer) error {
				if _, known := w.Get(store.ClusterKey(name)); known {
					return nil // it has come since
				}
				for _, k := range chunk {
					w.Delete(k)
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// trimBefore drops the history of a module that was deleted and had the name before. While it leaves a cluster yet, its revisions say who has
// its source, too, and may be an heir (see record.Succession).
func trimBefore(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord, leaves bool, puts map[string]proto.Message) {
	for _, prefix := range historyPrefixes {
		if prefix == store.VerbPrefix || prefix == store.RevisionPrefix && leaves {
			continue // see trimVerbs
		}
		first := m.GetFirstRollout()
		if prefix == store.RevisionPrefix {
			first = m.GetFirstRevision()
		}
		r.Scan(prefix+ref.String()+"/", func(e store.Entry) bool {
			n, ok := store.SplitNumber(e.Key)
			if ok && n < first {
				puts[e.Key] = nil
			}
			return ok && n < first // numbers ascend
		})
	}
}

// trimRevisions drops old revisions, but for those that say where the module stands, and the one that a person takes the newest rollout back to, also
// when that has ended: all between may have failed. Those of a module that had the name before are trimBefore's.
func trimRevisions(r store.Reader, ref fleet.ModuleRef, limit int, first int64, assigned map[int64]bool, puts map[string]proto.Message) {
	keep := record.LedTo(r, ref)
	driven := rollouts.Driven(r, ref).GetRollout()
	keep[driven.GetRevision()], keep[driven.GetFromRevision()] = true, true
	var all []store.Entry
	r.Scan(store.RevisionPrefix+ref.String()+"/", func(e store.Entry) bool {
		if n, ok := store.SplitNumber(e.Key); !ok || n >= first {
			all = append(all, e)
		}
		return true
	})
	for i, e := range all {
		rev, ok := e.Value.(*storev1.RevisionRecord)
		if n := rev.GetRevision().GetNumber(); ok && i < len(all)-limit && !assigned[n] && !keep[n] {
			puts[e.Key] = nil
		}
	}
}

// trimRollouts drops old rollouts, but for those that say something still: where the module stands, and what a person did with what a catalog
// has put last, of a generation.
func trimRollouts(r store.Reader, ref fleet.ModuleRef, put int64, puts map[string]proto.Message) {
	all := rollouts.List(r, ref)
	ofCatalog := rollouts.OfGeneration(r, ref, put)
	driven := rollouts.Driven(r, ref)
	_, stands := rollouts.StandsBy(r, ref)
	for i, ro := range all {
		n := ro.GetRollout().GetNumber()
		if i >= len(all)-keptRollouts || !rollouts.Ended(ro) || n == driven.GetRollout().GetNumber() || n == stands.GetRollout().GetNumber() ||
			put != 0 && n == ofCatalog.GetRollout().GetNumber() {
			continue
		}
		puts[store.RolloutKey(ref, n)] = nil
		for _, prefix := range []string{store.ChunksOf(ref, n), store.StepsOf(ref, n)} {
			r.Scan(prefix, func(e store.Entry) bool {
				puts[e.Key] = nil
				return true
			})
		}
	}
}

// trimVerbs drops the verbs of rollouts that are not kept, and those that a module of before has left. What may be repeated
// stays for a while.
func trimVerbs(r store.Reader, ref fleet.ModuleRef, first int64, now time.Time, puts map[string]proto.Message) {
	kept := map[int64]bool{}
	keep := func(key string) {
		_, goes := puts[key]
		if n, ok := store.SplitNumber(key); ok && n >= first && !goes {
			kept[n] = true
		}
	}
	for _, prefix := range []string{store.RolloutPrefix, store.StartPrefix} { // one that waits for its revision may be aborted
		r.Scan(prefix+ref.String()+"/", func(e store.Entry) bool { keep(e.Key); return true })
		for _, d := range r.Damaged(prefix + ref.String() + "/") {
			keep(d.Key)
		}
	}
	store.Scan(r, store.VerbPrefix+ref.String()+"/", func(v *storev1.VerbRecord, e store.Entry) bool {
		n, ok := store.SplitNumber(e.Key)
		repeatable := v.GetRequestId() != "" && now.Sub(v.GetVerb().GetAt().AsTime()) < keptRequests
		if ok && !kept[n] && !repeatable {
			puts[e.Key] = nil
		}
		return true
	})
}

// trimAnswers drops answers that nobody waits for, or asks for again, any more.
func trimAnswers(r store.Reader, ref fleet.ModuleRef, now time.Time, puts map[string]proto.Message) {
	store.Scan(r, store.AnswersOf(ref), func(a *storev1.AnswerRecord, e store.Entry) bool {
		kept := keptAnswers
		if a.GetRequestId() != "" {
			kept = keptRequests
		}
		if now.Sub(a.GetAt().AsTime()) >= kept {
			puts[e.Key] = nil
		}
		return true
	})
}
