package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/hashicorp/go-retryablehttp"

	"towline.dev/towline/pkg/fleet"
)

// Limits of what a Git server sends.
const (
	MaxRefsBytes = 16 << 20 // the list of branches and tags
	MaxPackBytes = 64 << 20 // the files of a commit, packed
)

const uploadPack = "git-upload-pack"

// gitHTTP is a repository over http, by the smart protocol.
type gitHTTP struct {
	f      *Fetcher
	g      gitRequest
	client *retryablehttp.Client
	base   *url.URL // where the repository is, after redirects
}

func (f *Fetcher) openGitHTTP(g gitRequest) (gitRemote, error) {
	client, err := f.client(g.place)
	if err != nil {
		return nil, err
	}
	return &gitHTTP{f: f, g: g, client: client, base: g.url}, nil
}

func (r *gitHTTP) close() {}

// refs asks for the branches and tags. A repository that has moved is asked where it is now, without the credentials.
func (r *gitHTTP) refs(ctx context.Context) (*packp.AdvRefs, error) {
	u := *r.g.url
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/info/refs", ""
	u.RawQuery = "service=" + uploadPack
	resp, err := r.do(ctx, http.MethodGet, &u, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if kind := resp.Header.Get("Content-Type"); kind != "application/x-"+uploadPack+"-advertisement" {
		return nil, refused("is no Git repository that is served by the smart protocol: check source.git.url")
	}
	data, err := readMost(resp.Body, MaxRefsBytes, "its list of branches and tags has more than %d MiB")
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, refused("answers nothing: look at the server")
	}
	at := *resp.Request.URL
	path, ok := strings.CutSuffix(at.Path, "/info/refs")
	if !ok {
		return nil, refused("is redirected to what is no Git repository: check source.git.url")
	}
	at.Path, at.RawPath, at.RawQuery = path, "", ""
	r.base = &at
	return readRefs(bytes.NewReader(data))
}

// pack asks for a pack. It is asked for where the refs were, and nowhere else.
func (r *gitHTTP) pack(ctx context.Context, req *packp.UploadPackRequest) ([]byte, error) {
	body, err := packRequest(req)
	if err != nil {
		return nil, err
	}
	u := *r.base
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+uploadPack, ""
	resp, err := r.do(ctx, http.MethodPost, &u, body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return readPack(resp.Body, req)
}

func (r *gitHTTP) do(ctx context.Context, method string, u *url.URL, body []byte) (*http.Response, error) {
	var payload any
	if body != nil {
		payload = body
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, method, u.String(), payload)
	if err != nil {
		return nil, errors.New("is no URL that can be fetched")
	}
	req.Header.Set("User-Agent", "git/2 (towline-hub)") // some servers serve Git to what calls itself git only
	if body != nil {
		req.Header.Set("Content-Type", "application/x-"+uploadPack+"-request")
		req.Header.Set("Accept", "application/x-"+uploadPack+"-result")
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, newStatusError(resp)
	}
	return resp, nil
}

// readRefs reads the list of branches and tags, and nothing after it.
func readRefs(r io.Reader) (*packp.AdvRefs, error) {
	adv, seen := packp.NewAdvRefs(), &endSeen{r: r}
	err := adv.Decode(seen)
	var said *pktline.ErrorLine
	switch {
	case errors.As(err, &said):
		return nil, refused("the server says: %s", clip(said.Text))
	case errors.Is(err, packp.ErrEmptyInput):
		return nil, err
	case errors.Is(err, packp.ErrEmptyAdvRefs) || err == nil && adv.IsEmpty():
		return nil, fleet.Errorf(fleet.ErrNotFound, "has no commit yet: push one")
	case err != nil && seen.ended && (len(adv.Prefix) > 0 || adv.Head != nil || len(adv.References) > 0):
		return nil, errBroken // it had begun to list them
	case err != nil:
		return nil, refused("answers what is no list of branches and tags: check source.git.url")
	}
	return adv, nil
}

// endSeen remembers that a stream has ended: what decodes it says of some ends only that a line is not as it should be.
type endSeen struct {
	r     io.Reader
	ended bool
}

func (e *endSeen) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.ended = e.ended || errors.Is(err, io.EOF)
	return n, err
}

// packRequest is the body of a request for a pack.
func packRequest(req *packp.UploadPackRequest) ([]byte, error) {
	var b bytes.Buffer
	if err := req.UploadRequest.Encode(&b); err != nil {
		return nil, err
	}
	err := pktline.NewEncoder(&b).EncodeString("done\n")
	return b.Bytes(), err
}

// readPack reads the answer to a request for a pack.
func readPack(r io.Reader, req *packp.UploadPackRequest) ([]byte, error) {
	resp := packp.NewUploadPackResponse(req)
	limited := &limitedReader{r: r, left: MaxPackBytes + 1<<20} // the frames around the pack take some, too
	if err := resp.Decode(io.NopCloser(limited)); err != nil {
		if limited.err != nil {
			return nil, limited.err
		}
		refusal := refused("the server gives no pack: %s", clip(err.Error()))
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errBroken
		case strings.Contains(err.Error(), errNotTheirs.Error()):
			return nil, errors.Join(refusal, errNotTheirs)
		}
		return nil, refusal
	}
	var pack io.Reader = resp
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, resp)
	case req.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, resp)
	}
	data, err := readMost(pack, MaxPackBytes, "the files of its commit have more than %d MiB, packed")
	switch {
	case err != nil && limited.err != nil:
		return nil, limited.err
	case err == nil && (len(data) == 0 || pack != io.Reader(resp) && limited.tail != flush):
		return nil, errBroken // its connection ended before the first frame, or between two
	}
	return data, err
}

// flush ends what is sent in frames.
var flush = [4]byte{'0', '0', '0', '0'}

// readMost reads all, up to a limit.
func readMost(r io.Reader, most int64, tooMuch string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case int64(len(data)) > most:
		return nil, fleet.Errorf(fleet.ErrExhausted, tooMuch+": put only what is to be delivered into it", most>>20)
	case err != nil && stopped(err):
		return nil, err
	case err != nil:
		return nil, errors.Join(errBroken, err)
	}
	return data, nil
}

// limitedReader ends a stream that goes on for too long, and remembers why it ended.
type limitedReader struct {
	r    io.Reader
	left int64
	err  error
	tail [4]byte // what was read last
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if l.left <= 0 {
		l.err = fleet.Errorf(fleet.ErrExhausted, "sends more than %d MiB: put only what is to be delivered into it", MaxPackBytes>>20)
		return 0, l.err
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	for _, b := range p[max(0, n-len(l.tail)):n] {
		copy(l.tail[:], l.tail[1:])
		l.tail[len(l.tail)-1] = b
	}
	if err != nil && !errors.Is(err, io.EOF) {
		if !stopped(err) {
			err = errors.Join(errBroken, err)
		}
		l.err = err
	}
	return n, err
}
