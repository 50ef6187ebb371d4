package state

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

const (
	// chunkBytes is the most that one Secret holds.
	chunkBytes = 512 << 10
	stateLabel = "towline.dev/state"
	headKind   = "head"
	chunkKind  = "chunk"
	dataKey    = "data"
	listPage   = 100
	attempts   = 5
)

// The annotations of a Secret. The head of a name is the Secret that says how many chunks of which generation there are;
// it is written last, so that a write is there as a whole or not at all. The epoch on it says who may write it.
const (
	nameAnnotation   = "towline.dev/state-name"
	chunksAnnotation = "towline.dev/state-chunks"
	setAnnotation    = "towline.dev/state-set"
	epochAnnotation  = "towline.dev/state-epoch"
)

// SecretClient is the part of a client for the Secrets of one namespace that is needed here.
type SecretClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error)
	Create(ctx context.Context, s *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// MetadataClient reads and marks the same Secrets without their contents.
type MetadataClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions, subresources ...string) (*metav1.PartialObjectMetadata, error)
	List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*metav1.PartialObjectMetadata, error)
}

// Secrets is a Store in Secrets of the workload cluster. A value of up to 512 KiB is one Secret; a larger one has its
// further chunks in Secrets of their own.
//
// Several processes can reach them, and one that stood still may go on at any time with what it was about to write. So
// every head carries the epoch of who wrote it, a process writes only over the resourceVersion that it knows, and Take
// changes every head before it lets anything be read: what an older process knows is out of date then. A head that it
// makes anew has an epoch that is too old to count.
type Secrets struct {
	client SecretClient
	meta   MetadataClient
	log    *slog.Logger

	mu    sync.Mutex
	epoch uint64 // 0 before Take
	lost  error  // a newer epoch has the state
	heads map[string]*head
}

var _ Store = (*Secrets)(nil)

// OpenSecrets makes a Store of clients for one namespace.
func OpenSecrets(client SecretClient, meta MetadataClient, log *slog.Logger) (*Secrets, error) {
	if client == nil || meta == nil {
		return nil, fleet.Invalid("state", "clients for Secrets are required")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Secrets{client: client, meta: meta, log: log, heads: map[string]*head{}}, nil
}

// head is what is known of the head of a name.
type head struct {
	busy    *semaphore.Weighted // taken while the name is written: who waits for that waits no longer than its context
	there   bool
	uid     types.UID
	version string
	set     string
	chunks  []string
	// removals counts those of chunks: one of which nobody heard the answer may be carried out at any time, also on a chunk of the name that is made again.
	removals int
}

func newHead() *head { return &head{busy: semaphore.NewWeighted(1)} }

func (h *head) know(m metav1.ObjectMeta) {
	h.there, h.uid, h.version = true, m.UID, m.ResourceVersion
	h.set, h.chunks = m.Annotations[setAnnotation], chunkNames(m)
}

// Read implements Store.
func (s *Secrets) Read(ctx context.Context, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	for range attempts {
		b, again, err := s.read(ctx, name)
		if !again {
			return b, err
		}
	}
	return nil, fleet.Errorf(fleet.ErrCorrupt, "state %s: a chunk is missing", name)
}

// read asks for another try when the chunks are gone that the head named: it was replaced meanwhile.
func (s *Secrets) read(ctx context.Context, name string) (b []byte, again bool, err error) {
	head, err := s.client.Get(ctx, headName(name), metav1.GetOptions{})
	switch {
	case kube.IsGone(err):
		return nil, false, notFound(name)
	case err != nil:
		return nil, false, fmt.Errorf("state %s: %w", name, unread(err))
	}
	switch held := s.held(); {
	case epochOf(head.ObjectMeta) > held && held > 0:
		return nil, false, fmt.Errorf("state %s: %w", name, s.lose(epochOf(head.ObjectMeta)))
	case epochOf(head.ObjectMeta) < held:
		return nil, false, notFound(name) // made by a process that had lost the Lease
	}
	all := bytes.Clone(head.Data[dataKey])
	for _, chunk := range chunkNames(head.ObjectMeta) {
		part, err := s.client.Get(ctx, chunk, metav1.GetOptions{})
		if kube.IsGone(err) {
			return nil, true, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("state %s: %w", name, unread(err))
		}
		all = append(all, part.Data[dataKey]...)
	}
	b, err = unseal(name, all)
	return b, false, err
}

// unread marks an error that says nothing of the state. Refusals are among them: an API server that starts refuses everybody.
func unread(err error) error {
	if kube.Is(err, kube.Unknown, kube.Busy, kube.Failed, kube.Stranger, kube.Forbidden, kube.Unauthorized) {
		return notRead{err}
	}
	return err
}

type notRead struct{ error }

func (n notRead) Unwrap() error      { return n.error }
func (notRead) Is(target error) bool { return target == ErrUnread }

func (s *Secrets) held() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// lose notes that a newer epoch has the state, so that nothing more is tried.
func (s *Secrets) lose(newer uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = superseded(newer, s.epoch)
	return s.lost
}

// writable says why nothing may be written; nil: it may, in the epoch.
func (s *Secrets) writable() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch == 0 {
		return 0, fleet.Errorf(fleet.ErrStale, "the state was not taken in an epoch of the lease yet")
	}
	return s.epoch, s.lost
}

// of is the head of a name, which may not be there.
func (s *Secrets) of(name string) *head {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.heads[name]
	if h == nil {
		h = newHead()
		s.heads[name] = h
	}
	return h
}

// Write implements Store. It fails with fleet.ErrStale once a newer epoch has the state.
func (s *Secrets) Write(ctx context.Context, name string, data []byte) error {
	if err := checkWrite(name, data); err != nil {
		return err
	}
	h := s.of(name)
	if err := h.busy.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("state %s: another write of it is under way: %w", name, err)
	}
	defer h.busy.Release(1)
	if err := s.write(ctx, name, h, seal(data)); err != nil {
		return fmt.Errorf("state %s: %w", name, err)
	}
	return nil
}

func (s *Secrets) write(ctx context.Context, name string, h *head, sealed []byte) error {
	epoch, err := s.writable()
	if err != nil {
		return err
	}
	next, rest := chunked(name, sealed, h.nextSet(sealed, epoch), epoch)
	for _, chunk := range rest {
		got, err := s.client.Create(ctx, chunk, metav1.CreateOptions{})
		if err == nil {
			err = kept(chunk, got)
		}
		if err != nil && !kube.Is(err, kube.Exists) {
			return err
		}
	}
	old := h.chunks
	if err := s.putHead(ctx, h, next); err != nil {
		return err
	}
	return s.removeChunks(ctx, h, difference(old, h.chunks))
}

// putHead writes over the version that is known. A version that is not known is one of our own writes whose answer was
// lost, or made by a process of an older epoch; one of a newer epoch ends it.
func (s *Secrets) putHead(ctx context.Context, h *head, next *corev1.Secret) error {
	for range attempts {
		var got *corev1.Secret
		var err error
		if h.there {
			next.ResourceVersion, next.UID = h.version, h.uid
			got, err = s.client.Update(ctx, next, metav1.UpdateOptions{})
		} else {
			next.ResourceVersion, next.UID = "", ""
			got, err = s.client.Create(ctx, next, metav1.CreateOptions{})
		}
		if err == nil {
			return h.took(next, got)
		}
		if !kube.Is(err, kube.Conflict, kube.Exists, kube.Gone) {
			return err
		}
		now, err := s.look(ctx, h, next.Name)
		if err != nil {
			return err
		}
		if h.there && h.set == next.Annotations[setAnnotation] {
			return keptMeta(next.ObjectMeta, now)
		}
	}
	return fleet.Errorf(fleet.ErrConflict, "somebody else keeps writing it")
}

// look learns what the head is now. One of a newer epoch is not ours to write.
func (s *Secrets) look(ctx context.Context, h *head, object string) (metav1.ObjectMeta, error) {
	now, err := s.meta.Get(ctx, object, metav1.GetOptions{})
	if kube.IsGone(err) {
		h.there = false
		return metav1.ObjectMeta{}, nil
	}
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	if epoch, held := epochOf(now.ObjectMeta), s.held(); epoch > held {
		return metav1.ObjectMeta{}, s.lose(epoch)
	}
	h.know(now.ObjectMeta)
	return now.ObjectMeta, nil
}

// WriteAll implements Store.
func (s *Secrets) WriteAll(ctx context.Context, items ...Item) error {
	for _, it := range items {
		if err := s.Write(ctx, it.Name, it.Data); err != nil {
			return err
		}
	}
	return nil
}

// Remove implements Store: the head goes first, so that a crash leaves chunks that nothing names.
func (s *Secrets) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	h := s.of(name)
	if err := h.busy.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("state %s: a write of it is under way: %w", name, err)
	}
	defer h.busy.Release(1)
	if err := s.remove(ctx, name, h); err != nil {
		return fmt.Errorf("state %s: %w", name, err)
	}
	return nil
}

func (s *Secrets) remove(ctx context.Context, name string, h *head) error {
	if _, err := s.writable(); err != nil {
		return err
	}
	for range attempts {
		if !h.there {
			return nil
		}
		err := s.client.Delete(ctx, headName(name), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &h.uid, ResourceVersion: &h.version}})
		if err == nil || kube.IsGone(err) {
			h.there = false
			return s.removeChunks(ctx, h, h.chunks)
		}
		if !kube.Is(err, kube.Conflict) {
			return err
		}
		if _, err := s.look(ctx, h, headName(name)); err != nil {
			return err
		}
	}
	return fleet.Errorf(fleet.ErrConflict, "somebody else keeps writing it")
}

func (s *Secrets) removeChunks(ctx context.Context, h *head, chunks []string) error {
	if len(chunks) > 0 {
		h.removals++
	}
	for _, chunk := range chunks {
		if err := s.client.Delete(ctx, chunk, metav1.DeleteOptions{}); err != nil && !kube.IsGone(err) {
			return fmt.Errorf("old chunk: %w", err)
		}
	}
	return nil
}

// List implements Store. Only the names count that Take saw or that were written since.
func (s *Secrets) List(ctx context.Context, prefix string) ([]string, error) {
	s.mu.Lock()
	heads := maps.Clone(s.heads)
	s.mu.Unlock()
	var names []string
	for name, h := range heads {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := h.busy.Acquire(ctx, 1); err != nil {
			return nil, fmt.Errorf("state %s: a write of it is under way: %w", name, err)
		}
		if h.there {
			names = append(names, name)
		}
		h.busy.Release(1)
	}
	slices.Sort(names)
	return names, nil
}

// setOf names what further chunks of sealed bytes hold, and the epoch: writing them again after a failure changes nothing, and no process of
// another epoch removes them.
func setOf(sealed []byte, epoch uint64) string {
	sum := fleet.DigestOf(sealed)
	return hex.EncodeToString(sum[:16]) + "-e" + strconv.FormatUint(epoch, 10)
}

// nextSet is setOf for the next write, with the removals before: none of these takes what is written then.
func (h *head) nextSet(sealed []byte, epoch uint64) string {
	set := setOf(sealed, epoch)
	switch {
	case h.there && (h.set == set || strings.HasPrefix(h.set, set+"-")):
		return h.set // it is there
	case h.removals > 0:
		return set + "-" + strconv.Itoa(h.removals)
	}
	return set
}

// chunked cuts sealed bytes into a head and further chunks, which are named by their set.
func chunked(name string, sealed []byte, set string, epoch uint64) (head *corev1.Secret, rest []*corev1.Secret) {
	n := 0
	for part := range slices.Chunk(sealed, chunkBytes) {
		if n == 0 {
			head = secret(headName(name), headKind, name, part)
		} else {
			rest = append(rest, secret(chunkName(name, set, n), chunkKind, name, part))
		}
		n++
	}
	head.Annotations[chunksAnnotation] = strconv.Itoa(n - 1)
	head.Annotations[setAnnotation] = set
	head.Annotations[epochAnnotation] = strconv.FormatUint(epoch, 10)
	return head, rest
}

func secret(object, kind, name string, data []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: object, Labels: map[string]string{stateLabel: kind},
			Annotations: map[string]string{nameAnnotation: name}},
		Type: "towline.dev/state",
		Data: map[string][]byte{dataKey: data},
	}
}

func headName(name string) string {
	d := fleet.DigestOf([]byte(name))
	return "towline-state-" + hex.EncodeToString(d[:16])
}

func chunkName(name, set string, n int) string {
	return fmt.Sprintf("%s-%s-%d", headName(name), set, n)
}

// chunkNames are the further chunks that a head names.
func chunkNames(head metav1.ObjectMeta) []string {
	n, err := strconv.Atoi(head.Annotations[chunksAnnotation])
	if err != nil || n < 0 || n > maxValue/chunkBytes+1 {
		return nil
	}
	names := make([]string, 0, n)
	for i := 1; i <= n; i++ {
		names = append(names, chunkName(head.Annotations[nameAnnotation], head.Annotations[setAnnotation], i))
	}
	return names
}

// epochOf is the epoch in which a head was written or taken last.
func epochOf(head metav1.ObjectMeta) uint64 {
	n, err := strconv.ParseUint(head.Annotations[epochAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func difference(old, current []string) []string {
	gone := map[string]bool{}
	for _, name := range old {
		gone[name] = true
	}
	for _, name := range current {
		delete(gone, name)
	}
	return slices.Sorted(maps.Keys(gone))
}
