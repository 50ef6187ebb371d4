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
