package hub_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// appears waits until a file is there; false: ctx has ended.
func appears(ctx context.Context, path string) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// A hub writes into its data directory only: the client configuration belongs to the person, and a service may have no
// home directory.
func TestServeLeavesTheClientConfigurationAlone(t *testing.T) {
	mine := filepath.Join(t.TempDir(), "config")
	must(t, clientconfig.New(clientconfig.Context{Name: clientconfig.Local, Server: "127.0.0.1:1", Token: "of another hub"}).Save(mine))
	before, err := os.ReadFile(mine)
	must(t, err)
	for name, env := range map[string]string{"named by TOWLINE_CONFIG": mine, "no home directory": ""} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(clientconfig.Env, env)
			t.Setenv("HOME", "")
			t.Setenv("XDG_CONFIG_HOME", "")
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			serve := hub.Command()
			serve.SetArgs([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"})
			serve.SetErr(io.Discard)
			done := make(chan error, 1)
			run, stop := context.WithCancel(ctx)
			go func() { done <- serve.ExecuteContext(run); cancel() }()
			if !appears(ctx, filepath.Join(dir, hub.AdminFile)) {
				t.Fatalf("the hub did not start: %v", <-done)
			}
			c, err := client.Dial(ctx, client.Options{Config: filepath.Join(dir, hub.AdminFile)})
			must(t, err)
			_, err = c.Identity.GetServerInfo(ctx, &towlinev1.GetServerInfoRequest{})
			must(t, err)
			must(t, c.Close())
			stop()
			must(t, <-done)
			if after, err := os.ReadFile(mine); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the client configuration was\n%s\nand is %v\n%s", before, err, after)
			}
		})
	}
}

// A flag about hubs that share an etcd is refused where none is shared, and not passed over.
func TestFlagsOfASharedEtcdAreRefusedWithoutOne(t *testing.T) {
	for says, args := range map[string][]string{
		"--share-etcd is for --etcd-endpoints": {"--share-etcd"},
		"--hub-address is for --share-etcd":    {"--etcd-endpoints", "127.0.0.1:1", "--hub-address", "127.0.0.1:2"},
	} {
		serve := hub.Command()
		serve.SetArgs(append([]string{"serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"}, args...))
		serve.SetErr(io.Discard)
		if err := serve.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", args, err, says)
		}
	}
}

// A certificate that is issued anew is for the hub that the configuration was for: who has revoked the last one gets in with it.
func TestAdminCertKeepsWhereTheHubIs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, hub.AdminFile)
	issue := func(args ...string) clientconfig.Context {
		t.Helper()
		issued := hub.Command()
		issued.SetArgs(append([]string{"admin-cert", "--data-dir", dir}, args...))
		issued.SetOut(io.Discard)
		issued.SetErr(io.Discard)
		must(t, issued.ExecuteContext(t.Context()))
		written, err := clientconfig.Load(path)
		must(t, err)
		context, err := written.Context("")
		must(t, err)
		return context
	}
	_, err := registry.OpenCA(dir, time.Now)
	must(t, err)
	first := issue()
	if first.Server != "127.0.0.1:7444" {
		t.Errorf("without a configuration it is for %q", first.Server)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--server", "hub.example.com:8444"}, "hub.example.com:8444"},
		{nil, "hub.example.com:8444"},
		{[]string{"--server", "127.0.0.1:7444"}, "127.0.0.1:7444"},
	} {
		if now := issue(tc.args...); now.Server != tc.want || bytes.Equal(now.CertificateData, first.CertificateData) {
			t.Errorf("admin-cert %q: it is for %q, want %q", tc.args, now.Server, tc.want)
		}
	}
	must(t, clientconfig.Merge(path, clientconfig.Context{Name: "prod", Server: "hub.example.com:7444", Token: "shown once"}))
	issue()
	if all, err := clientconfig.Load(path); err != nil || len(all.Contexts) != 2 || all.Contexts[1].Token != "shown once" {
		t.Errorf("what else was in the file is gone: %v", err)
	}
	must(t, os.WriteFile(path, []byte("no configuration"), 0o600))
	if now := issue(); now.Server != "127.0.0.1:7444" {
		t.Errorf("in the place of what cannot be read it is for %q", now.Server)
	}
}
