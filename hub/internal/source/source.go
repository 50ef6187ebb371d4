// Package source fetches what a module's source names and makes it an artifact: files with one digest by content. It
// owns limits, unpacking and the refusals that keep a hostile server or archive from the hub; it must not know what
// the files mean, nor any store, module or cluster.
package source

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Limits of a source.
const (
	MaxInlineBytes   = 1 << 20                   // all files of an inline source
	MaxDownloadBytes = 16 << 20                  // what a server sends
	MaxEntries       = artifact.MaxEntries       // entries of an archive
	MaxUnpackedBytes = artifact.MaxUnpackedBytes // files of an archive, unpacked
	MaxRatio         = 100                       // unpacked to packed, for archives of more than 1 MiB unpacked
	MaxRedirects     = 5

	DefaultTimeout = wire.DefaultFetchTimeout
	MaxTimeout     = wire.MaxFetchTimeout
)

// Artifact is what a source held when it was fetched.
type Artifact struct {
	// Digest is the SHA-256 of Archive: the same files have the same digest, wherever they come from.
	Digest fleet.Digest
	// Files by slash-separated path.
	Files map[string][]byte
	// Archive is artifact.Encode(Files).
	Archive []byte
	// Ref is what the source's ref was, exactly: with it in the place of the ref, the files are the same again. Empty of a source
	// that has none.
	Ref string
	// Made is when that was made, to the second and by its own word; zero: it says none.
	Made time.Time
	// Charts are those that Vendor fetched by a range of versions. Where a lock says the version, the source does.
	Charts []*towlinev1.FetchedChart
}

// Options of a Fetcher. The zero Options work.
type Options struct {
	// Log gets attempts and retries at debug level, without credentials and query strings. Nil drops them.
	Log *slog.Logger
	// DenyPrivate refuses loopback and private addresses, too. Link-local and metadata addresses are always refused.
	// It holds for the address that is dialled, so a proxy must then have a public one.
	DenyPrivate bool
	// TempDir is where archives are unpacked for a moment; empty is the system's.
	TempDir string
	// RootCAs verify servers; nil is the system's.
	RootCAs *x509.CertPool
	// Proxy chooses a proxy; nil is http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// Uploaded reads the archive of files that were uploaded, by its digest; nil: there are none.
	Uploaded func(ctx context.Context, d fleet.Digest) ([]byte, error)
	// RetryWait is the wait before the first of three retries, doubled each time; default 500ms.
	RetryWait time.Duration
	// Secrets gives the values of a secret of a project; its errors say which secret and what to do, and no values.
	Secrets func(ctx context.Context, project, name string) (map[string][]byte, error)
	// AllowFiles allows repositories in folders of this machine.
	AllowFiles bool
	// CacheDir is where is kept what was fetched by an exact ref; empty: nothing is.
	CacheDir string
	// CacheBytes is how much is kept there; default 1 GiB.
	CacheBytes int64
	// DiskFree is how many bytes are free on the disk of a directory, if that is known; nil: it is not.
	DiskFree func(dir string) (bytes int64, known bool)
	// DiskSpare is how much of that disk must be free for anything to be kept in CacheDir.
	DiskSpare int64
}

// Fetcher fetches sources. It is safe for concurrent use and holds no connection between fetches.
type Fetcher struct {
	opts      Options
	unpacking chan struct{} // an archive that is unpacked has one
	cache     *cache
}

const (
	// maxUnpacking is how many archives are unpacked at a time: each may take MaxUnpackedBytes.
	maxUnpacking = 4
	// maxUnpackTime is how long one may take, whatever time its source gives the server. What is allowed takes seconds.
	maxUnpackTime = 2 * time.Minute
)

// New makes a Fetcher.
func New(opts Options) (*Fetcher, error) {
	if opts.RetryWait < 0 {
		return nil, fleet.Invalidf("RetryWait", "%s is negative", opts.RetryWait)
	}
	if opts.RetryWait == 0 {
		opts.RetryWait = 500 * time.Millisecond
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Proxy == nil {
		opts.Proxy = http.ProxyFromEnvironment
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = defaultCacheBytes
	}
	return &Fetcher{opts: opts, unpacking: make(chan struct{}, maxUnpacking), cache: &cache{dir: opts.CacheDir, most: opts.CacheBytes, free: opts.DiskFree, spare: opts.DiskSpare}}, nil
}

// enter waits until there is room to unpack something. Who is in waits for no server: one that hangs must not hold up what others sent.
func (f *Fetcher) enter(ctx context.Context) (leave func(), err error) {
	select {
	case f.unpacking <- struct{}{}:
		return func() { <-f.unpacking }, nil
	case <-ctx.Done():
		return nil, errors.Join(errNoTurn, ctx.Err())
	}
}

// inTurn makes something of what has arrived, when there is room for it. That has a time of its own: what the source gives the server is not
// spent here, and an author who gives it much takes no place from others.
func inTurn[T any](ctx context.Context, f *Fetcher, do func(context.Context) (T, error)) (made T, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return made, err
	}
	defer leave()
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxUnpackTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})()
	if made, err = do(own); err == nil {
		return made, nil
	}
	if errors.Is(own.Err(), context.DeadlineExceeded) {
		err = fleet.Errorf(fleet.ErrStopped, "takes the hub more than %s to unpack: put only what is to be delivered into it, or look whether the hub's machine is overloaded", maxUnpackTime)
	}
	return made, &arrivedError{err}
}

// unpackWith makes an artifact of what was fetched, when there is room for it.
func (f *Fetcher) unpackWith(ctx context.Context, unpack unpacker) (Artifact, error) {
	return inTurn(ctx, f, func(ctx context.Context) (Artifact, error) {
		files, err := unpack(ctx)
		if err != nil {
			return Artifact{}, err
		}
		return newArtifact(files), nil
	})
}

// Fetch resolves a source of a module of the project to an artifact. A *SecretError waits for a secret. Any other error is
// an *AwayError, of a server, fleet.ErrStopped, of an archive that is not unpacked in time, or fleet.ErrUnavailable where trying again may help; all others stay until the source is changed: fleet.ErrInvalid, fleet.ErrNotFound,
// fleet.ErrDenied, among them *UnverifiedError (not signed as source.verify says), fleet.ErrExhausted (too large) and fleet.ErrCorrupt (not the wanted digest).
func (f *Fetcher) Fetch(ctx context.Context, project string, src *towlinev1.Source) (Artifact, error) {
	a, err := f.fetch(ctx, project, src)
	if host := Origin(src); host != "" && errors.Is(err, fleet.ErrUnavailable) && !errors.Is(err, fleet.ErrStopped) && !errors.As(err, new(*SecretError)) {
		err = &AwayError{Host: host, Err: err}
	}
	return a, err
}

func (f *Fetcher) fetch(ctx context.Context, project string, src *towlinev1.Source) (Artifact, error) {
	kinds := wire.SourceKinds(src)
	if len(kinds) != 1 {
		return Artifact{}, fleet.Join("source", wire.OneSource(kinds))
	}
	signed, err := readVerify(src)
	if err != nil {
		return Artifact{}, fleet.Join("source", err)
	}
	switch kinds[0] {
	case "inline":
		return fromInline(src.GetInline())
	case "http":
		return f.fetchHTTP(ctx, project, src.GetHttp())
	case "git":
		return f.fetchGit(ctx, project, src.GetGit(), signed)
	case "oci":
		return f.fetchOCI(ctx, project, src.GetOci(), signed)
	case "upload":
		return f.uploaded(ctx, src.GetUpload())
	case "helm":
		return f.fetchHelm(ctx, project, src.GetHelm(), signed)
	}
	return Artifact{}, fleet.Invalidf("source", "%s is not known to this hub", kinds[0])
}

// Origin is the server that a source is fetched from; empty: none is needed.
func Origin(src *towlinev1.Source) string {
	address := src.GetHttp().GetUrl() + src.GetGit().GetUrl() + src.GetOci().GetUrl() + src.GetHelm().GetRepo() // a source is of one kind
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

func fromInline(src *towlinev1.InlineSource) (Artifact, error) {
	files := make(map[string][]byte, len(src.GetFiles()))
	total := 0
	for name, content := range src.GetFiles() {
		total += len(content)
		files[name] = []byte(content)
	}
	if total > MaxInlineBytes {
		return Artifact{}, fleet.Errorf(fleet.ErrExhausted, "source.inline.files: have %d bytes; at most %d are allowed inline: use an http source", total, MaxInlineBytes)
	}
	if err := artifact.CheckNames(files); err != nil {
		return Artifact{}, fleet.Join("source.inline.files", err)
	}
	return newArtifact(files), nil
}

// named says by which name the exact ref of an artifact was found.
func named(a Artifact, by string) Artifact {
	if by != "" {
		a.Ref = by + "@" + a.Ref
	}
	return a
}

// madeAt is a time that somebody else wrote, in seconds; zero: it is none of the calendar.
func madeAt(seconds int64) time.Time {
	const last = 253402300799 // of the year 9999
	if seconds <= 0 || seconds > last {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

func newArtifact(files map[string][]byte) Artifact {
	archive := artifact.Encode(files)
	return Artifact{Digest: fleet.DigestOf(archive), Files: files, Archive: archive}
}
