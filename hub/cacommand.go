package hub

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// admin has a client configuration of an admin in the hub's directory.
func (h *Hub) admin(ctx context.Context) error {
	var failed error
	_, err := h.ca.EnsureAdmin(filepath.Join(h.o.DataDir, AdminFile), h.o.API.Addr().String(), func(serial string) bool {
		revoked, err := h.registry.Revoked(ctx, serial)
		failed = errors.Join(failed, err)
		return revoked
	})
	return errors.Join(failed, err)
}

// clientOf reaches the hub that runs on dir, by the configuration of that name; empty: by the hub's own, in which another hub may be current.
func clientOf(dir, config string) client.Options {
	if config != "" {
		return client.Options{Config: config}
	}
	return client.Options{Config: filepath.Join(dir, AdminFile), ContextName: clientconfig.Local}
}

// caFlags say which hub it is, and where its CA is.
type caFlags struct{ dir, caDir, config string }

func (f *caFlags) add(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&f.dir, "data-dir", "", "the hub's directory (required)")
	c.Flags().StringVar(&f.config, "config", "", "configuration of an admin's client, which says where the hub is (default: "+AdminFile+" in --data-dir)")
	_ = c.MarkFlagRequired("data-dir")
	return c
}

// authorities asks the hub for its CAs.
func (f *caFlags) authorities(ctx context.Context) (all []*towlinev1.Authority, err error) {
	cl, err := client.Dial(ctx, clientOf(f.dir, f.config))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	resp, err := cl.Identity.ListAuthorities(ctx, &towlinev1.ListAuthoritiesRequest{})
	return resp.GetAuthorities(), err
}

func caCommand() *cobra.Command {
	c := &cobra.Command{Use: "ca", Short: "Show the CAs of a hub that runs, or begin with a new one"}
	var rotating, showing caFlags
	rotate := rotating.add(&cobra.Command{Use: "rotate --data-dir DIR", Short: "Make a new CA, which takes the place of the one in DIR at the hub's next start", Args: cobra.NoArgs,
		Long: "Makes a new CA in the place of ca.crt and ca.key. Each of the two signs the other, so that agents and people who know one\n" +
			"take the other. The hub uses it from its next start on: it signs with the new one and trusts both, until nobody needs the\n" +
			"old one any more. Where hubs share a store, copy ca.crt and ca.key to the others when the first has started with them.",
		Example: "  towline-hub ca rotate --data-dir /var/lib/towline",
		RunE:    func(c *cobra.Command, _ []string) error { return rotateCA(c.Context(), c.OutOrStdout(), rotating) }})
	rotate.Flags().StringVar(&rotating.caDir, "ca-dir", "", "directory of ca.crt and ca.key (default: --data-dir)")
	status := showing.add(&cobra.Command{Use: "status --data-dir DIR", Short: "Show the CAs of a hub that runs, and who needs each", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := showing.authorities(c.Context())
			if err != nil {
				return err
			}
			return showCAs(c.OutOrStdout(), all)
		}})
	c.AddCommand(rotate, status)
	return c
}

// rotateCA begins a rotation, if the one before is over and the hub has the CA that is there.
func rotateCA(ctx context.Context, out io.Writer, f caFlags) error {
	if f.caDir == "" {
		f.caDir = f.dir
	}
	all, err := f.authorities(ctx)
	if err != nil {
		return fmt.Errorf("ca: the hub has to run, to say that no rotation is under way: %w", err)
	}
	ca, err := registry.OpenCA(f.caDir, time.Now)
	if err != nil {
		return err
	}
	pin := ca.Pin()
	for i, a := range all {
		last := i == len(all)-1
		switch {
		case last && a.GetPin() != hex.EncodeToString(pin[:]):
			return fleet.Errorf(fleet.ErrPrecondition, "ca: the CA in %s is not the newest of the hub (%.16s…): start the hub with it first, or put there what the other hubs have", f.caDir, a.GetPin())
		case !last && a.GetRetired() == nil:
			return fleet.Errorf(fleet.ErrPrecondition, "ca: a rotation is under way: the CA %.16s… is needed %d times; see: towline-hub ca status --data-dir %s", a.GetPin(), a.GetNeeded(), f.dir)
		}
	}
	next, err := registry.RotateCA(f.caDir, time.Now)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: new CA %x\nStart the hub again: it uses the new one then, and trusts the old one until nobody needs it. Keep a copy of ca.crt and ca.key.\n", f.caDir, next)
	return err
}

func showCAs(out io.Writer, all []*towlinev1.Authority) error {
	tw := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, err := fmt.Fprintln(tw, "CA\tADDED\tEXPIRES\tSTATE")
	for i, a := range all {
		state := fmt.Sprintf("trusted, needed %d times", a.GetNeeded())
		switch {
		case a.GetRetired() != nil:
			state = "not trusted since " + day(a.GetRetired())
		case i == len(all)-1 && a.GetSigns():
			state = "signs"
		case i == len(all)-1:
			state = "the newest; this hub does not have its key"
		case a.GetSigns():
			state += "; this hub signs with it: give it ca.crt and ca.key of the newest"
		}
		_, werr := fmt.Fprintf(tw, "%.16s\t%s\t%s\t%s\n", a.GetPin(), day(a.GetAdded()), day(a.GetExpires()), state)
		err = errors.Join(err, werr)
	}
	if err = errors.Join(err, tw.Flush()); err != nil {
		return err
	}
	for _, a := range all {
		for _, h := range a.GetHolders() {
			if _, err := fmt.Fprintf(out, "%.16s is needed by %s\n", a.GetPin(), h); err != nil {
				return err
			}
		}
		if more := int(a.GetNeeded()) - len(a.GetHolders()); more > 0 {
			if _, err := fmt.Fprintf(out, "%.16s is needed by %d more\n", a.GetPin(), more); err != nil {
				return err
			}
		}
	}
	return nil
}

func day(t interface{ AsTime() time.Time }) string { return t.AsTime().UTC().Format(time.DateOnly) }
