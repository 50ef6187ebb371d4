package watch

import (
	"context"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

func newKind() *kind {
	w := &Watcher{o: Options{Record: func(fleet.ObjectID) *apply.Record { return nil }}}
	k := emptyKind(w, apply.Resource{Kind: "ConfigMap", Namespaced: true})
	k.live = k.asWatched
	return k
}

// asWatched answers a read with what the watch has told of the object.
func (k *kind) asWatched(_ context.Context, at Key) (*unstructured.Unstructured, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := &unstructured.Unstructured{}
	u.SetUID(types.UID(k.prints[at].UID))
	u.SetResourceVersion(strconv.FormatUint(k.prints[at].Version, 10))
	return u, nil
}

const live = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":"7"},"data":{"k":"v"}}`

func decodeItem(t *testing.T, k *kind, object string) *item {
	t.Helper()
	got, _, err := decoder{k}.Decode([]byte(object), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	i, ok := got.(*item)
	if !ok {
		t.Fatalf("decoded to %T", got)
	}
	return i
}

func TestEventOfOwnWriteIsTheAnswerOnce(t *testing.T) {
	k := newKind()
	f := &Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 7}
	k.observe(f)
	if i := decodeItem(t, k, live); i.print != f || i.version != "7" {
		t.Errorf("the event is %+v, not the answer", i)
	}
	if i := decodeItem(t, k, live); i.print == f {
		t.Error("the answer served twice")
	}
}

func TestAnswerIsNotTakenForAnotherObjectOrABookmark(t *testing.T) {
	bookmark := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}`
	k := newKind()
	k.observe(&Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 7})
	if i := decodeItem(t, k, bookmark); i.print != nil || i.version != "7" || i.annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("the bookmark is %+v", i)
	}
	k.observe(&Fingerprint{Namespace: "n", Name: "b", UID: "u2", Version: 7})
	if i := decodeItem(t, k, live); i.print.Name != "a" {
		t.Errorf("the event is of %q", i.print.Name)
	}
}

func TestAnswerAfterItsEventIsNotKept(t *testing.T) {
	k := newKind()
	k.keep(&Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 7})
	k.observe(&Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 7})
	if len(k.answers) != 0 {
		t.Errorf("%d answers wait for events that came", len(k.answers))
	}
}

func TestStatusIsAnError(t *testing.T) {
	got, _, err := decoder{newKind()}.Decode([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`), nil, nil)
	if s, ok := got.(*metav1.Status); err != nil || !ok || s.Code != 410 || s.Reason != metav1.StatusReasonExpired {
		t.Errorf("decoded to %+v, %v", got, err)
	}
}

func TestSplitOfEvents(t *testing.T) {
	for _, c := range []struct{ data, kind, object string }{
		{`{"type":"MODIFIED","object":` + live + "}\n", "MODIFIED", ":" + live},
		{`{"type":"BOOKMARK","object":{}}`, "BOOKMARK", "{}"},
		{`{"object":{},"type":"ADDED"}`, "", ""},
		{`{"type": "ADDED", "object": {}}`, "", ""},
	} {
		kind, object, ok := split([]byte(c.data))
		if ok != (c.kind != "") || ok && (kind != c.kind || string(object) != c.object) {
			t.Errorf("%s: %q, %q, %t", c.data, kind, object, ok)
		}
	}
}

// Kinds start their streams at the same time, again and again; each must find the codecs as they were.
func TestStreamsShareNoSerializer(t *testing.T) {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			k := &kind{}
			for _, info := range (negotiated{streamCodecs.WithoutConversion(), k}).SupportedMediaTypes() {
				if s := info.StreamSerializer; s != nil {
					if _, wrapped := s.Serializer.(events).Serializer.(events); wrapped {
						t.Errorf("%s: the serializer of one kind is in that of another", info.MediaType)
					}
				}
			}
		})
	}
	group.Wait()
}
