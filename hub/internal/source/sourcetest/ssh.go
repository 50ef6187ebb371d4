package sourcetest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// SSH is a server that lets one key in, and runs nothing but git-upload-pack of repositories.
type SSH struct {
	// Addr is where it listens, KnownHosts what says whose key it has.
	Addr, KnownHosts string
	// Answer is called for each command, with the path of the repository.
	Answer func(ch io.ReadWriteCloser, stderr io.Writer, path string) (status byte)
}

// Key makes a key: in PEM, and as a server knows it. A passphrase locks it.
func Key(t *testing.T, passphrase string) (private []byte, public ssh.PublicKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	if public, err = ssh.NewPublicKey(pub); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block), public
}

// ServeSSH starts a server of its own key that lets the client in; it ends with the test.
func ServeSSH(t *testing.T, client ssh.PublicKey, answer func(ch io.ReadWriteCloser, stderr io.Writer, path string) (status byte)) *SSH {
	t.Helper()
	private, public := Key(t, "")
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), client.Marshal()) {
			return nil, io.EOF
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &SSH{Addr: l.Addr().String(), KnownHosts: knownhosts.Line([]string{l.Addr().String()}, public) + "\n", Answer: answer}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn, config)
		}
	}()
	return s
}

func (s *SSH) serve(conn net.Conn, config *ssh.ServerConfig) {
	defer func() { _ = conn.Close() }()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		ch, in, err := c.Accept()
		if err != nil {
			return
		}
		for r := range in {
			var command struct{ Text string }
			known := r.Type == "exec" && ssh.Unmarshal(r.Payload, &command) == nil && strings.HasPrefix(command.Text, service+" '")
			_ = r.Reply(known, nil)
			if known {
				status := s.Answer(ch, ch.Stderr(), strings.Trim(strings.TrimPrefix(command.Text, service), " '"))
				_, _ = ch.SendRequest("exit-status", false, []byte{0, 0, 0, status})
				_ = ch.Close()
			}
		}
	}
}

// SSHAnswer serves the repository at /repo.git.
func (r *Repo) SSHAnswer(ch io.ReadWriteCloser, stderr io.Writer, path string) byte {
	if path != "/repo.git" {
		_, _ = io.WriteString(stderr, "fatal: '"+path+"' does not appear to be a git repository\n")
		return 128
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	adv, err := r.session().AdvertisedReferencesContext(r.t.Context())
	if err == nil {
		err = adv.Encode(ch)
	}
	if err == nil {
		err = r.serve(ch, ch)
	}
	if err != nil {
		return 1
	}
	return 0
}
