package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

var (
	streamScheme     = runtime.NewScheme()
	streamCodecs     = serializer.NewCodecFactory(streamScheme)
	streamParameters = runtime.NewParameterCodec(streamScheme)
	streamVersion    = schema.GroupVersion{Version: "v1"}
)

func init() { metav1.AddToGroupVersion(streamScheme, streamVersion) }

// stream watches one resource. What comes is reduced from the bytes on, and an event that says what is known is not
// decoded at all: most are of the agent's own writes, which the API server has answered.
func (k *kind) stream(config *rest.Config) (func(context.Context, metav1.ListOptions) (watch.Interface, error), error) {
	c := rest.CopyConfig(config)
	c.GroupVersion = &schema.GroupVersion{}
	c.NegotiatedSerializer = negotiated{streamCodecs.WithoutConversion(), k}
	c.AcceptContentTypes, c.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientForConfigAndClient(c, k.w.http)
	if err != nil {
		return nil, err
	}
	path := k.path()
	return func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.Watch = true
		return client.Get().AbsPath(path...).SpecificallyVersionedParams(&o, streamParameters, streamVersion).Watch(ctx)
	}, nil
}

// negotiated has the client decode with the kind.
type negotiated struct {
	runtime.NegotiatedSerializer
	kind *kind
}

// SupportedMediaTypes are those of the codec factory, whose list is shared by all kinds, with the kind's own stream.
func (n negotiated) SupportedMediaTypes() []runtime.SerializerInfo {
	types := slices.Clone(n.NegotiatedSerializer.SupportedMediaTypes())
	for i := range types {
		if s := types[i].StreamSerializer; s != nil {
			own := *s
			own.Serializer, own.Framer = events{s.Serializer}, framer{s.Framer, n.kind.rest}
			types[i].StreamSerializer = &own
		}
	}
	return types
}

func (n negotiated) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return decoder{n.kind}
}

// events takes a watch event apart without reading the object in it.
type events struct{ runtime.Serializer }

func (e events) Decode(data []byte, as *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		if kind, object, ok := split(data); ok {
			event.Type, event.Object.Raw = kind, object
			return event, as, nil
		}
	}
	return e.Serializer.Decode(data, as, into)
}

var (
	objectField = []byte(`","object":`)
	// modified is left in front of an object that is neither new nor gone, so that the decoder can tell.
	modified = []byte(":")
)

// split is the type and the object of an event as the API server writes it; the frame is valid JSON already.
func split(data []byte) (kind string, object []byte, ok bool) {
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(data), eventStart)
	if !ok {
		return "", nil, false
	}
	at := bytes.Index(rest, objectField)
	if at < 0 || bytes.IndexByte(rest[:at], '"') >= 0 {
		return "", nil, false
	}
	kind, at = string(rest[:at]), at+len(objectField)
	if kind == string(watch.Modified) {
		at -= len(modified)
	}
	object, ok = bytes.CutSuffix(rest[at:], []byte{'}'})
	return kind, object, ok
}

// decoder makes items of objects.
type decoder struct{ kind *kind }

func (d decoder) Decode(data []byte, as *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	data, changed := bytes.CutPrefix(data, modified)
	id := identity(data)
	if f := d.kind.answered(id.uid, id.version); f != nil {
		return &item{version: strconv.FormatUint(id.version, 10), print: f}, as, nil
	}
	if changed && id.version != 0 && d.kind.put(data, id) {
		return &item{version: strconv.FormatUint(id.version, 10)}, as, nil
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &u.Object); err != nil {
		return nil, as, err
	}
	switch {
	case u.GetKind() == "Status" && u.GetAPIVersion() == "v1":
		status := &metav1.Status{}
		return status, as, json.Unmarshal(data, status)
	case u.GetName() == "": // a bookmark
		return &item{version: u.GetResourceVersion(), annotations: u.GetAnnotations()}, as, nil
	}
	return reduced(u, d.kind.reduce), as, nil
}

// maxAnswers is how many answers may wait for their events before old ones are given up.
const maxAnswers = 1024

// answer remembers a fingerprint that the API server's answer to a write gave, until its event comes.
func (k *kind) answer(f *Fingerprint) {
	if f.Version == 0 {
		return
	}
	if len(k.answers) >= maxAnswers {
		clear(k.answers)
	}
	k.answers[f.Version] = f
}

// answered is the fingerprint of the object in this version, if an answer gave it. What a list is made of is read in any
// case: the definition of the kind may have changed since.
func (k *kind) answered(uid []byte, version uint64) *Fingerprint {
	k.mu.Lock()
	f := k.answers[version]
	delete(k.answers, version)
	if k.since != nil {
		f = nil
	}
	k.mu.Unlock()
	if f == nil || f.UID != string(uid) {
		return nil
	}
	return f
}
