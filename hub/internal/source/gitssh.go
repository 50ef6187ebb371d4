package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"towline.dev/towline/pkg/fleet"
)

const (
	sshTimeout   = 10 * time.Second // to connect and to begin
	maxSSHStderr = 4 << 10
)

// gitSSH is a repository behind an SSH server.
type gitSSH struct {
	client  *ssh.Client
	session *ssh.Session
	in      io.WriteCloser
	out     *limitedReader
	said    *clippedBuffer // what the server wrote beside the protocol
	release func() bool
}

// openGitSSH connects as the secret says: to a server that it knows, with the key that it holds.
func (f *Fetcher) openGitSSH(ctx context.Context, g gitRequest) (_ gitRemote, err error) {
	port := g.url.Port()
	if port == "" {
		port = "22"
	}
	addr := net.JoinHostPort(g.url.Hostname(), port)
	config, err := f.sshConfig(g, addr)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: sshTimeout, Control: f.guard().Control}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	r := &gitSSH{said: &clippedBuffer{most: maxSSHStderr}}
	r.release = context.AfterFunc(ctx, func() { _ = conn.Close() }) // nothing else ends what waits for the server
	defer func() {
		if err != nil {
			r.release()
			err = errors.Join(err, closed(conn.Close()))
		}
	}()
	c, chans, reqs, err := ssh.NewClientConn(conn, addr, config)
	if err != nil {
		return nil, explainSSH(g, addr, err)
	}
	r.client = ssh.NewClient(c, chans, reqs)
	return r, r.start(g.url.Path)
}

// sshConfig is who the hub is, and whom it trusts.
func (f *Fetcher) sshConfig(g gitRequest, addr string) (*ssh.ClientConfig, error) {
	if g.secret == nil {
		return nil, fleet.Invalid("source.git.secretName", "is missing: over ssh a secret is needed, with a private key and the server's own")
	}
	if len(g.secret.values[keyIdentity]) == 0 || len(g.secret.values[keyKnownHosts]) == 0 {
		return nil, g.secret.wants("over ssh it needs the keys %s (a private key in PEM) and %s (as ssh-keyscan prints it)", keyIdentity, keyKnownHosts)
	}
	signer, err := g.secret.signer()
	if err != nil {
		return nil, err
	}
	hosts, err := f.knownHosts(g.secret)
	if err != nil {
		return nil, err
	}
	user := g.url.User.Username()
	if user == "" {
		user = "git"
	}
	return &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: sshTimeout,
		HostKeyCallback: hosts.HostKeyCallback(), HostKeyAlgorithms: hosts.HostKeyAlgorithms(addr)}, nil
}

// signer is the private key that the hub shows to a server.
func (s *secret) signer() (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(s.values[keyIdentity])
	locked := errors.As(err, new(*ssh.PassphraseMissingError))
	if password := s.values[keyPassword]; locked && len(password) > 0 {
		signer, err = ssh.ParsePrivateKeyWithPassphrase(s.values[keyIdentity], bytes.TrimRight(password, "\r\n"))
	}
	switch {
	case err == nil:
		return signer, nil
	case locked && len(s.values[keyPassword]) == 0:
		return nil, s.wants("%s is locked by a passphrase: set it as %s", keyIdentity, keyPassword)
	}
	return nil, s.wants("%s is no private key in PEM, or its passphrase is another", keyIdentity)
}

// knownHosts are the servers that a secret trusts; the library reads them from files only.
func (f *Fetcher) knownHosts(s *secret) (db *knownhosts.HostKeyDB, err error) {
	file, err := os.CreateTemp(f.opts.TempDir, "towline-hosts-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.Write(s.values[keyKnownHosts])
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if db, err = knownhosts.NewDB(file.Name()); err != nil {
		return nil, s.wants("%s is no list of known hosts: write it as ssh-keyscan prints it", keyKnownHosts)
	}
	return db, nil
}

// explainSSH says why no session began. Who the server is not, is said before all else.
func explainSSH(g gitRequest, addr string, err error) error {
	switch {
	case knownhosts.IsHostKeyChanged(err):
		return fleet.Errorf(fleet.ErrDenied, "the server %s has another key than secret %s says: look at who answers there, then at its key %s", addr, g.secret.name, keyKnownHosts)
	case knownhosts.IsHostUnknown(err):
		return fleet.Errorf(fleet.ErrDenied, "the server %s is not in the key %s of secret %s: add what ssh-keyscan prints of it, once you have checked that", addr, keyKnownHosts, g.secret.name)
	case strings.Contains(err.Error(), "unable to authenticate"):
		return fleet.Errorf(fleet.ErrDenied, "the server %s does not take the key %s of secret %s", addr, keyIdentity, g.secret.name)
	}
	return errors.Join(errBroken, err)
}

func (r *gitSSH) start(path string) (err error) {
	if r.session, err = r.client.NewSession(); err != nil {
		return errors.Join(errBroken, err)
	}
	if r.in, err = r.session.StdinPipe(); err != nil {
		return err
	}
	out, err := r.session.StdoutPipe()
	if err != nil {
		return err
	}
	r.out = &limitedReader{r: out, left: MaxRefsBytes + MaxPackBytes}
	r.session.Stderr = r.said
	if err := r.session.Start(uploadPack + " " + shellQuote(path)); err != nil {
		return errors.Join(errBroken, err)
	}
	return nil
}

// shellQuote is one word for a shell, as git writes it.
func shellQuote(s string) string {
	return "'" + strings.NewReplacer(`'`, `'\''`, `!`, `'\!'`).Replace(s) + "'"
}

func (r *gitSSH) refs(context.Context) (*packp.AdvRefs, error) {
	adv, err := readRefs(r.out)
	if err == nil {
		return adv, nil
	}
	if errors.Is(err, packp.ErrEmptyInput) {
		_ = r.session.Wait() // it has said all then
		if said := r.said.text(); said != "" {
			return nil, fleet.Errorf(fleet.ErrNotFound, "the server says: %s", said)
		}
		return nil, errBroken
	}
	if r.out.err != nil {
		return nil, r.out.err
	}
	return nil, err
}

func (r *gitSSH) pack(_ context.Context, req *packp.UploadPackRequest) ([]byte, error) {
	body, err := packRequest(req)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(r.in, bytes.NewReader(body)); err != nil {
		return nil, errors.Join(errBroken, err)
	}
	return readPack(r.out, req)
}

func (r *gitSSH) close() {
	r.release()
	_ = r.session.Close()
	_ = r.client.Close()
}

// closed is an error of closing, but that it was closed before.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// clippedBuffer keeps the beginning of what is written.
type clippedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	most int
}

func (c *clippedBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if room := c.most - c.b.Len(); room > 0 {
		c.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (c *clippedBuffer) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clip(strings.Join(strings.Fields(c.b.String()), " "))
}
