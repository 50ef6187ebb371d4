package canaries

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// mark begins every planted value. It is three times three bytes, so that it has one form in base64 for each place in which it can stand.
const mark = "CanaryQ7x"

// value is what a canary of a name has in it, whatever stands around it.
func value(name string) string { return mark + name + "Zq" }

// encoded is what of a text's base64 is the same, whatever stands before and behind it.
func encoded(text string) []string {
	out := make([]string, 3)
	for over := range out {
		from, to := []int{0, 2, 3}[over], (over+len(text))/3*4
		out[over] = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", over) + text))[from:to]
	}
	return out
}

// forms of a text: as it is, in base64, and in base64 of that. Quotes and addresses leave letters and digits as they are.
func forms(text string) []string {
	out := append([]string{text}, encoded(text)...)
	for _, once := range out[1:] {
		out = append(out, encoded(once)...)
	}
	return out
}

// find names the canaries in what somebody could read, also in what is compressed in it.
func find(data []byte, names []string) []string {
	var found []string
	look := func(part []byte) {
		for k, form := range forms(mark) {
			for at := 0; ; at++ {
				i := bytes.Index(part[at:], []byte(form))
				if i < 0 {
					break
				}
				at += i
				found = append(found, nameAt(part[at:], k, names))
			}
		}
	}
	look(data)
	for _, part := range unpacked(data, 3) {
		look(part)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// nameAt is which canary begins here, in one of its forms.
func nameAt(rest []byte, form int, names []string) string {
	for _, name := range names {
		if bytes.HasPrefix(rest, []byte(forms(value(name))[form])) {
			return name
		}
	}
	return "a part of one"
}

// zippedText is gzip in base64.
var zippedText = regexp.MustCompile(`H4sI[A-Za-z0-9+/]{16,}=*`)

// zipped is a text in gzip.
func zipped(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return out.String()
}

// maxUnpacked is the most of one compressed part that is looked at.
const maxUnpacked = 32 << 20

// unpacked is what begins anywhere in the data as a frame of zstd or gzip.
func unpacked(data []byte, depth int) (out [][]byte) {
	if depth == 0 {
		return nil
	}
	for _, kind := range []struct {
		magic string
		open  func(io.Reader) (io.Reader, error)
	}{
		{"\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) {
			return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.IgnoreChecksum(true))
		}},
		{"\x1f\x8b\x08", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	} {
		for at := 0; ; at++ {
			i := bytes.Index(data[at:], []byte(kind.magic))
			if i < 0 {
				break
			}
			at += i
			r, err := kind.open(bytes.NewReader(data[at:]))
			if err != nil {
				continue
			}
			// What is cut off or is no frame ends with an error; what was read before that counts.
			plain, _ := io.ReadAll(io.LimitReader(r, maxUnpacked))
			if d, ok := r.(*zstd.Decoder); ok {
				d.Close()
			}
			if len(plain) > 0 {
				out = append(append(out, plain), unpacked(plain, depth-1)...)
			}
		}
	}
	for _, text := range zippedText.FindAll(data, -1) {
		raw, _ := base64.StdEncoding.DecodeString(string(text[:len(text)/4*4]))
		out = append(out, unpacked(raw, depth-1)...)
	}
	return out
}

// TestFind: a canary is found in every form that it may be in.
func TestFind(t *testing.T) {
	names := []string{"one", "other"}
	text := "password: " + value("one") + " and " + value("other") + "\n"
	var zstded bytes.Buffer
	enc, err := zstd.NewWriter(&zstded)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = enc.Write([]byte(strings.Repeat("x", 5000) + text))
	_ = enc.Close()
	cases := map[string][]byte{"plain": []byte(text), "gzip": []byte("before" + zipped(text)), "gzip in base64": []byte(`a: "` + base64.StdEncoding.EncodeToString([]byte(zipped(text))) + `"`), "zstd": append([]byte("before"), zstded.Bytes()...)}
	for over := range 3 {
		once := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", over) + text))
		cases[fmt.Sprintf("base64 %d", over)] = []byte(once)
		for again := range 3 {
			cases[fmt.Sprintf("base64 %d of base64 %d", again, over)] = []byte(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", again) + once)))
		}
	}
	for what, data := range cases {
		if got := find(data, names); !slices.Equal(got, names) {
			t.Errorf("%s: found %v", what, got)
		}
	}
	if got := find([]byte("nothing of it: Canary Q7x"), names); len(got) != 0 {
		t.Errorf("found %v where there is none", got)
	}
}
