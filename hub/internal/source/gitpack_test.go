package source

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"towline.dev/towline/pkg/fleet"
)

// Kinds of objects in a pack.
const (
	blobKind   = 3
	offsetKind = 6 // a change of what stands so many bytes before it
	refKind    = 7 // a change of what has a hash
)

// sealed is a pack with its checksum.
func sealed(objects ...packed) []byte {
	data := packOf(objects...)
	sum := sha1.Sum(data)
	return append(data, sum[:]...)
}

func plain(kind int, data []byte) packed {
	return packed{kind: kind, says: uint64(len(data)), data: data}
}

// changed is a change of the blob that makes another one of its first byte, with the rest as it is.
func changed(base []byte, first byte) packed {
	data := binary.AppendUvarint(nil, uint64(len(base)))
	data = binary.AppendUvarint(data, uint64(len(base)))
	data = append(data, 1, first) // one byte of its own
	size := len(base) - 1
	data = append(data, 0x80|1|16|32|64, 1, byte(size), byte(size>>8), byte(size>>16)) // then the base from its second byte
	p := plain(refKind, data)
	h := plumbing.ComputeHash(plumbing.BlobObject, base)
	p.before = h[:]
	return p
}

// TestPackOfLargeChanges: a change counts by what it unpacks to, whatever it says that it makes.
func TestPackOfLargeChanges(t *testing.T) {
	base := []byte("abcd")
	change := changed(base, 'x')
	change.data = append(change.data, make([]byte, 60<<10)...)
	change.says = uint64(len(change.data))
	for n, kind := range map[int]error{1: fleet.ErrCorrupt, 2: fleet.ErrExhausted} {
		objects := []packed{}
		for range n {
			objects = append(objects, change)
		}
		objects = append(objects, plain(blobKind, base)) // before it none of them can be made
		if _, err := readObjects(t.Context(), sealed(objects...), packLimits{100, 100 << 10}); !errors.Is(err, kind) {
			t.Errorf("%d changes of 60 KiB: %v, want %v", n, err, kind)
		}
	}
}

// TestDamagedPacks: none of them is taken, and none ends the hub.
func TestDamagedPacks(t *testing.T) {
	base := []byte("abcd")
	whole := sealed(plain(blobKind, base), changed(base, 'x'))
	if _, err := readObjects(t.Context(), whole, packLimits{2, 1 << 10}); err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	far, early := changed(base, 'x'), changed(base, 'x')
	far.kind, far.before = offsetKind, []byte{127}
	early.kind, early.before = offsetKind, []byte{1}
	short := plain(blobKind, base)
	short.says++
	for name, data := range map[string][]byte{
		"without its checksum":          whole[:len(whole)-sha1.Size],
		"cut in its checksum":           whole[:len(whole)-1],
		"with another checksum":         flipped,
		"a change of nothing":           sealed(changed(base, 'x')),
		"a change of itself":            sealed(plain(blobKind, base), changed([]byte("xbcd"), 'x')),
		"a change from its outside":     sealed(plain(blobKind, base), far),
		"a change from in between":      sealed(plain(blobKind, base), early),
		"a change of another size":      sealed(plain(blobKind, base), packed{kind: refKind, says: 4, before: changed(base, 'x').before, data: []byte{9, 1, 1, 'x'}}),
		"shorter than it says":          sealed(short),
		"an object of no known kind":    sealed(plain(5, base)),
		"an object that is there twice": sealed(plain(blobKind, base), changed(base, 'x'), plain(blobKind, base)),
	} {
		if _, err := readObjects(t.Context(), data, packLimits{10, 1 << 10}); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPackOfOneObjectManyTimes: changes of an object are made once, and not for each time that it is there.
func TestPackOfOneObjectManyTimes(t *testing.T) {
	base := []byte("abcd")
	var objects []packed
	for i := range 200 {
		objects = append(objects, changed(base, byte(i)))
	}
	for range 200 {
		objects = append(objects, plain(blobKind, base))
	}
	data := sealed(objects...)
	var err error
	grown := allocates(func() { _, err = readObjects(t.Context(), data, packLimits{MaxObjects, MaxObjectBytes}) })
	if !errors.Is(err, fleet.ErrCorrupt) || grown > 10 {
		t.Errorf("takes %d MiB: %v", grown, err)
	}
}

// endsAfter is a context that ends after it was looked at so many times.
type endsAfter struct {
	context.Context
	left, more int
}

func (c *endsAfter) Err() error {
	if c.left--; c.left >= 0 {
		return nil
	}
	c.more++
	return context.Canceled
}

// TestPackStopsWithItsContext: also in the middle of an object, and among changes.
func TestPackStopsWithItsContext(t *testing.T) {
	large := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(large)
	for name, objects := range map[string][]packed{
		"an object": {plain(blobKind, large)},
		"changes":   {plain(blobKind, large[:8]), changed(large[:8], 1), changed(large[:8], 2), changed(large[:8], 3), changed(large[:8], 4)},
	} {
		ctx := &endsAfter{Context: t.Context(), left: 7}
		if _, err := readObjects(ctx, sealed(objects...), packLimits{10, 8 << 20}); !errors.Is(err, context.Canceled) || ctx.more > 4 {
			t.Errorf("%s: looked at %d times after it had ended: %v", name, ctx.more, err)
		}
	}
}

// TestLargeLinksAreNotRead: a large blob that a folder shows many times, as links that are refused for it or under one name, is not read for
// each. Sources that do so keep no place from others for longer than their own time.
func TestLargeLinksAreNotRead(t *testing.T) {
	blob := make([]byte, 8<<20)
	for name, mode := range map[string]string{"links": "120000", "files of one name": "100644"} {
		t.Run(name, func(t *testing.T) {
			var tree bytes.Buffer
			h := plumbing.ComputeHash(plumbing.BlobObject, blob)
			for i := range 2000 {
				at := fmt.Sprintf("a%04d", i)
				if mode == "100644" {
					at = "a"
				}
				fmt.Fprintf(&tree, "%s %s\x00%s", mode, at, h[:])
			}
			base, commit := servePack(t, tree.Bytes(), plain(blobKind, blob))
			f := fetcher(t, Options{AllowFiles: true})
			ended := make(chan error, maxUnpacking)
			for range maxUnpacking {
				go func() {
					src := gitSource(base+"/repo.git", nil)
					src.Git.Path, src.Git.Timeout = "used", "5s"
					_, err := f.Fetch(t.Context(), "default", src)
					ended <- err
				}()
			}
			for range maxUnpacking {
				if err := <-ended; err == nil || !strings.Contains(err.Error(), "is no folder with files at commit "+commit) && !errors.Is(err, fleet.ErrExhausted) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// TestFolderThatIsShownManyTimes: a folder counts by its size each time that it is looked into.
func TestFolderThatIsShownManyTimes(t *testing.T) {
	inner := []byte("100644 " + strings.Repeat("n", 1<<20) + "\x00" + strings.Repeat("h", 20))
	h := plumbing.ComputeHash(plumbing.TreeObject, inner)
	var tree bytes.Buffer
	for i := range 300 {
		fmt.Fprintf(&tree, "40000 a%03d\x00%s", i, h[:])
	}
	base, _ := servePack(t, tree.Bytes(), plain(2, inner))
	src := gitSource(base+"/repo.git", nil)
	src.Git.Path = "used"
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("got %v", err)
	}
}

// TestCommitsOfManyLines: who made a commit or a tag may write into it what they like, and as much; nothing of that is read but what it leads to.
func TestCommitsOfManyLines(t *testing.T) {
	tree := plumbing.ComputeHash(plumbing.TreeObject, nil)
	for _, header := range []string{"mergetag", "gpgsig", "more"} {
		lines := header + " x\n" + strings.Repeat(" x\n", 60_000)
		commit := []byte("tree " + tree.String() + "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n" + lines + "\nx\n")
		at := plumbing.ComputeHash(plumbing.CommitObject, commit)
		tag := []byte("object " + at.String() + "\ntype commit\ntag v1\ntagger a <a@b> 1 +0000\n" + lines + "\nx\n")
		store, err := readObjects(t.Context(), sealed(plain(1, commit), plain(2, nil), plain(4, tag)), packLimits{10, 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var c gitCommit
		grown := allocates(func() { c, err = commitOf(store, plumbing.ComputeHash(plumbing.TagObject, tag)) })
		if err != nil || c.hash != at || c.tree != tree || grown > 16 {
			t.Errorf("%s: %v of %v, with %d MiB: %v", header, c.tree, c.hash, grown, err)
		}
	}
}

// TestCommitsThatAreNone: an object that does not begin as git writes it leads nowhere.
func TestCommitsThatAreNone(t *testing.T) {
	hash := strings.Repeat("a", 40)
	for _, text := range []string{"", "tree", "tree " + hash, "tree " + hash[1:] + "\n", "tree " + hash + " \n", "tree " + strings.Repeat("g", 40) + "\n", "author a\ntree " + hash + "\n", "\ntree " + hash + "\n"} {
		commit := plain(1, []byte(text))
		store, err := readObjects(t.Context(), sealed(commit), packLimits{10, 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := commitOf(store, plumbing.ComputeHash(plumbing.CommitObject, commit.data)); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// servePack serves a repository of one commit with a root folder and other objects, as a server may that no git has looked after.
func servePack(t *testing.T, tree []byte, more ...packed) (url, commit string) {
	root := plumbing.ComputeHash(plumbing.TreeObject, tree)
	text := []byte("tree " + root.String() + "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
	commit = plumbing.ComputeHash(plumbing.CommitObject, text).String()
	data := sealed(append([]packed{plain(1, text), plain(2, tree)}, more...)...)
	return serve(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = fmt.Fprintf(w, "001e# service=git-upload-pack\n0000003c%s HEAD\x00ofs-delta\n003d%s refs/heads/main\n0000", commit, commit)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(w, "0008NAK\n")
		_, _ = w.Write(data)
	}), commit
}

// TestSourceThatHasNoTurn: all places for unpacking are taken. That is the hub's matter: nobody is sent to look at the server.
func TestSourceThatHasNoTurn(t *testing.T) {
	base := []byte("abcd")
	sum := plumbing.ComputeHash(plumbing.BlobObject, base)
	tree := append([]byte("100644 a.yaml\x00"), sum[:]...)
	server, _ := servePack(t, tree, plain(blobKind, base))
	f := fetcher(t, Options{AllowFiles: true})
	src := gitSource(server+"/repo.git", nil)
	for range maxUnpacking {
		leave, err := f.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	src.Git.Timeout = "2s"
	_, err := f.Fetch(t.Context(), "default", src)
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "waits for its turn") || strings.Contains(err.Error(), "look at the server") {
		t.Errorf("got %v, want that it waits for its turn, and of no server", err)
	}
}
