package watch

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// read reads frames as the streaming decoder does: a short buffer grows.
func read(r io.Reader) (frames []string, err error) {
	for {
		buf, base := make([]byte, 16), 0
		for {
			var n int
			if n, err = r.Read(buf[base:]); errors.Is(err, io.ErrShortBuffer) {
				base += n
				buf = append(buf, make([]byte, len(buf))...)
				continue
			}
			if err != nil {
				return frames, err
			}
			frames = append(frames, string(buf[:base+n]))
			break
		}
	}
}

func TestFrames(t *testing.T) {
	long := `{"type":"ADDED","object":{"data":"` + strings.Repeat("x", 3*frameBuffer) + `"}}`
	for name, tc := range map[string]struct {
		stream string
		want   []string
		err    error
	}{
		"events":                   {"{\"type\":\"ADDED\",\"object\":{\"a\":{}}}\n{\"type\":\"DELETED\",\"object\":{}}\n", []string{`{"type":"ADDED","object":{"a":{}}}`, `{"type":"DELETED","object":{}}`}, io.EOF},
		"empty lines between":      {"\n{\"type\":\"ADDED\",\"object\":{}}\r\n\n\n{\"type\":\"ADDED\",\"object\":{}}", []string{`{"type":"ADDED","object":{}}`, `{"type":"ADDED","object":{}}`}, io.EOF},
		"larger than the buffer":   {long + "\n" + long + "\n", []string{long, long}, io.EOF},
		"indented":                 {"{\n \"type\": \"ADDED\",\n \"object\": {}\n}\n{\"type\":\"ADDED\",\"object\":{}}\n", []string{"{\n \"type\": \"ADDED\",\n \"object\": {}\n}", `{"type":"ADDED","object":{}}`}, io.EOF},
		"other order":              {"{\"object\":{},\"type\":\"ADDED\"}\n", []string{`{"object":{},"type":"ADDED"}`}, io.EOF},
		"cut off":                  {"{\"type\":\"ADDED\",\"object\":{}}\n{\"type\":\"ADD", []string{`{"type":"ADDED","object":{}}`}, io.ErrUnexpectedEOF},
		"nothing":                  {"", nil, io.EOF},
		"escaped end of a line":    {`{"type":"ADDED","object":{"a":"}}\\n"}}` + "\n", []string{`{"type":"ADDED","object":{"a":"}}\\n"}}`}, io.EOF},
		"braces at a string's end": {`{"type":"ADDED","object":{"a":"}}"}}` + "\n", []string{`{"type":"ADDED","object":{"a":"}}"}}`}, io.EOF},
	} {
		for how, source := range map[string]io.Reader{"at once": strings.NewReader(tc.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(tc.stream))} {
			got, err := read(framer{}.NewFrameReader(io.NopCloser(source)))
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || !errors.Is(err, tc.err) {
				t.Errorf("%s, %s: %d frames %.200q, %v; want %d and %v", name, how, len(got), got, err, len(tc.want), tc.err)
			}
		}
	}
}

// A server that hangs does not hold the watch for ever.
func TestSilentStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		f := newFrames(r, nil, time.Minute)
		defer f.Close()
		began := time.Now()
		go func() {
			for range 3 {
				<-time.After(50 * time.Second)
				_, _ = w.Write([]byte("{\"type\":\"BOOKMARK\",\"object\":{}}\n"))
			}
		}()
		got, err := read(f)
		if took := time.Since(began); len(got) != 3 || err == nil || took != 210*time.Second {
			t.Errorf("%d events, then %v after %s; want 3 and an error after 210s", len(got), err, took)
		}
	})
}

func TestBrokenStreamIsAnError(t *testing.T) {
	cut := errors.New("connection reset")
	_, err := read(framer{}.NewFrameReader(io.NopCloser(io.MultiReader(strings.NewReader(`{"type":"ADD`), iotest.ErrReader(cut)))))
	if !errors.Is(err, cut) {
		t.Errorf("error %v", err)
	}
}
