package source

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"towline.dev/towline/pkg/fleet"
)

// TestDeepFolders: files of a byte, each of which is in many folders of its own, are refused before these take memory, also where links show
// one of them many times, outside of the folder that is used.
func TestDeepFolders(t *testing.T) {
	items := []item{}
	for i := range 600 {
		items = append(items, file(fmt.Sprintf("%04d/%sf", i, strings.Repeat("a/", 98)), "x"))
	}
	if _, err := scan(t.Context(), zip(t, tarOf(t, items...))); err == nil || !strings.Contains(err.Error(), "one too many of files and folders") {
		t.Errorf("an archive: %v", err)
	}
	blob := []byte("d")
	h := plumbing.ComputeHash(plumbing.BlobObject, blob)
	objects := []packed{plain(blobKind, blob)}
	at := fmt.Sprintf("100644 f\x00%s", h[:])
	for range 99 {
		h := plumbing.ComputeHash(plumbing.TreeObject, []byte(at))
		objects = append(objects, plain(2, []byte(at)))
		at = fmt.Sprintf("40000 a\x00%s", h[:])
	}
	var tree bytes.Buffer
	for i := range 600 {
		fmt.Fprintf(&tree, "120000 L%04d\x00%s", i, h[:])
	}
	fmt.Fprintf(&tree, "40000 d%s", strings.TrimPrefix(at, "40000 a"))
	base, _ := servePack(t, tree.Bytes(), objects...)
	src := gitSource(base+"/repo.git", nil)
	src.Git.Path = "d"
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("a repository: %v", err)
	}
}
