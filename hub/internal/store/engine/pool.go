package engine

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/hub/internal/store"
)

const (
	// poolSize is how many messages a pool finds again at least, of those that it saw last.
	poolSize = 8192
	// maxPooled bounds what is worth finding again: what is larger is mostly of one record only.
	maxPooled = 1024
)

// pool has equal messages in the records of a class be one: what many clusters were given in one step, or report alike. Nobody changes
// a message of the read model, so that whoever has it need not know who else has. It remembers what came lately, and so forgets by
// itself what no record holds any more.
type pool struct {
	mu         sync.Mutex
	young, old map[string]proto.Message // by their bytes
}

// pools are those of the classes that share anything. They are made once.
type pools map[*store.Class]*pool

func newPools() pools {
	out := pools{}
	for i := range store.Classes {
		if c := &store.Classes[i]; c.Shares != store.SharesNothing {
			out[c] = &pool{}
		}
	}
	return out
}

// read decodes a payload of a class, with what other records have of it alike.
func (ps pools) read(class *store.Class, payload []byte) (proto.Message, error) {
	p := ps[class]
	switch {
	case p == nil || len(payload) > maxPooled:
		return plain(class, payload)
	case class.Shares == store.SharesAll:
		return p.get(payload, func() (proto.Message, error) { return plain(class, payload) })
	}
	before, part, after, ok := store.Cut(payload, protowire.Number(class.Shares))
	if !ok {
		return plain(class, payload)
	}
	m := class.New()
	field := m.ProtoReflect().Descriptor().Fields().ByNumber(protowire.Number(class.Shares))
	shared, err := p.get(part, func() (proto.Message, error) {
		x := m.ProtoReflect().NewField(field).Message().Interface()
		return x, proto.Unmarshal(part, x)
	})
	for _, rest := range [][]byte{before, after} {
		if err == nil {
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(rest, m)
		}
	}
	if err != nil {
		return nil, err
	}
	m.ProtoReflect().Set(field, protoreflect.ValueOfMessage(shared.ProtoReflect()))
	return m, nil
}

func plain(class *store.Class, payload []byte) (proto.Message, error) {
	m := class.New()
	return m, proto.Unmarshal(payload, m)
}

// get is the message of some bytes, made if it is new.
func (p *pool) get(raw []byte, read func() (proto.Message, error)) (proto.Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.young[string(raw)]; ok {
		return m, nil
	}
	m, ok := p.old[string(raw)]
	if !ok {
		var err error
		if m, err = read(); err != nil {
			return nil, err
		}
	}
	if len(p.young) >= poolSize {
		p.young, p.old = nil, p.young
	}
	if p.young == nil {
		p.young = map[string]proto.Message{}
	}
	p.young[string(raw)] = m
	return m, nil
}
