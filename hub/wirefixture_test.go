package hub_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
)

var wireFixture = flag.String("wire-fixture", "", "write what goes over the stream of an agent into this file; a new one with each change of the protocol")

// said is a frame as a fixture has it.
type said struct {
	ByAgent bool   `json:"byAgent,omitempty"`
	Frame   []byte `json:"frame"`
}

// wiretap notes what the agent's side of a stream encodes and decodes.
type wiretap struct {
	encoding.CodecV2
	mu  sync.Mutex
	out bytes.Buffer
}

func (c *wiretap) note(byAgent bool, data mem.BufferSlice) error {
	line, err := json.Marshal(said{byAgent, data.Materialize()})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Write(append(line, '\n'))
	return err
}

// Marshal implements encoding.CodecV2.
func (c *wiretap) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	if _, ok := v.(*agentv1.ConnectRequest); ok && err == nil {
		err = c.note(true, data)
	}
	return data, err
}

// Unmarshal implements encoding.CodecV2.
func (c *wiretap) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*agentv1.ConnectResponse); ok {
		if err := c.note(false, data); err != nil {
			return err
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// TestWriteWireFixture has a hub and an agent say what pkg/wire TestWireFixtures replays.
func TestWriteWireFixture(t *testing.T) {
	if *wireFixture == "" {
		t.Skip("without -wire-fixture")
	}
	plain := encoding.GetCodecV2("proto")
	c := &wiretap{CodecV2: plain}
	encoding.RegisterCodecV2(c)
	defer encoding.RegisterCodecV2(plain)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory = true })
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.await("web", w.put(module("web", map[string]string{"b.yaml": strings.ReplaceAll(configMap("x")["a.yaml"], "name: web", "name: other")})).GetRevision())
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a"})
	must(t, err)
	w.eventually(func() bool { return bytes.Count(c.text(), []byte("byAgent")) > 6 })
	must(t, os.WriteFile(*wireFixture, c.text(), 0o600))
}

func (c *wiretap) text() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.out.Bytes())
}
