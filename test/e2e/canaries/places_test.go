package canaries

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "towline.dev/towline/gen/towline/v1" // the methods that are read
	"towline.dev/towline/pkg/client"
)

// places is what somebody can read, by where.
type places map[string][]byte

func (p places) add(where string, data []byte) { p[where] = append(append(p[where], data...), '\n') }

// readVerbs begin the names of methods that change nothing.
var readVerbs = []string{"Get", "List", "Watch", "Explain"}

// readAPI calls every method of the API that changes nothing, for everything that there is by name.
func (p places) readAPI(t *testing.T, who string, c *client.Client, names []string) {
	t.Helper()
	called := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("towline.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for k := range methods.Len() {
				method := methods.Get(k)
				for _, verb := range readVerbs {
					if strings.HasPrefix(string(method.Name()), verb) {
						called++
						p.readMethod(t, who, c, method, names)
					}
				}
			}
		}
		return true
	})
	if called < 20 {
		t.Errorf("only %d methods were found", called)
	}
}

func (p places) readMethod(t *testing.T, who string, c *client.Client, method protoreflect.MethodDescriptor, names []string) {
	t.Helper()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	for _, req := range requests(method, names) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		p.add(who+" calls "+string(method.Name()), answers(ctx, c, method, path, req))
		cancel()
	}
}

// answers are the messages of one call, and its error.
func answers(ctx context.Context, c *client.Client, method protoreflect.MethodDescriptor, path string, req proto.Message) (out []byte) {
	st, err := c.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: method.IsStreamingServer()}, path)
	if err == nil {
		err = st.SendMsg(req)
	}
	if err == nil {
		err = st.CloseSend()
	}
	for err == nil {
		resp := dynamicpb.NewMessage(method.Output())
		if err = st.RecvMsg(resp); err != nil {
			break
		}
		b, _ := proto.Marshal(resp)
		out = append(append(out, b...), '\n')
		if fd := method.Output().Fields().ByName("type"); !method.IsStreamingServer() || fd != nil && resp.Get(fd).String() == "SYNCED" {
			return out
		}
	}
	return fmt.Appendf(out, "%v\n", err)
}

// requests are one without anything, and one for each name; a cluster is c1, and an object is looked for among those of the test.
func requests(method protoreflect.MethodDescriptor, names []string) []proto.Message {
	out := []proto.Message{dynamicpb.NewMessage(method.Input())}
	fields := method.Input().Fields()
	if fields.ByName("module") == nil && fields.ByName("name") == nil {
		return out
	}
	for _, name := range names {
		m := dynamicpb.NewMessage(method.Input())
		for field, text := range map[protoreflect.Name]string{"module": name, "name": name, "cluster": "c1"} {
			if fd := fields.ByName(field); fd != nil && fd.Kind() == protoreflect.StringKind && !fd.IsList() {
				m.Set(fd, protoreflect.ValueOfString(text))
			}
		}
		out = append(out, m)
	}
	return out
}

// readURL gets a page.
func (p places) readURL(t *testing.T, where, url string) {
	t.Helper()
	resp, err := http.Get(url)
	must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	p.add(where, data)
}

// readFile reads one file.
func (p places) readFile(t *testing.T, where, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	p.add(where, data)
}

// readFiles reads all files below a directory.
func (p places) readFiles(t *testing.T, where, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		p.add(where+" "+rel, data)
		return nil
	}))
}
