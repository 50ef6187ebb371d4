package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/pack"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

// fromFlag is a local folder that becomes the files of modules.
type fromFlag struct{ dir string }

func (o *fromFlag) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dir, "from", "", "local folder whose files are those of the modules with source: {upload: {}}; "+pack.IgnoreFile+" leaves out")
	must(cmd.MarkFlagDirname("from"))
}

// check refuses a flag that is there and empty: a script's variable that is not set.
func (o *fromFlag) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("from") && o.dir == "" {
		return usagef("--from is empty: name a folder")
	}
	return nil
}

// read is the folder for the modules that take it; nil: none was named.
func (o *fromFlag) read(found []resource.Resource) (*pack.Pack, error) {
	if o.dir == "" {
		return nil, nil
	}
	if len(uploads(found)) == 0 {
		return nil, o.notTaken(found)
	}
	return pack.Dir(o.dir)
}

// uploads are the modules whose files are uploaded.
func uploads(found []resource.Resource) (out []*v1.Module) {
	for _, r := range found {
		if m, ok := r.Message.(*v1.Module); ok && m.GetSpec().GetSource().GetUpload() != nil {
			out = append(out, m)
		}
	}
	return out
}

// notTaken says that no module takes the folder.
func (o *fromFlag) notTaken(found []resource.Resource) error {
	for _, r := range found {
		m, ok := r.Message.(*v1.Module)
		if !ok {
			continue
		}
		return usagef("%s: module %s: --from is for source: {upload: {}}, and its source is %s", r.Source, m.GetMetadata().GetName(), words(wire.SourceKinds(m.GetSpec().GetSource())...))
	}
	return usagef("--from is for modules, and there is none")
}

// ofAll refuses a folder for several modules of which one says that it has other files. A module by itself takes the folder in their place.
func (o *fromFlag) ofAll(found []resource.Resource, p *pack.Pack) error {
	modules := uploads(found)
	if len(modules) < 2 {
		return nil
	}
	for _, m := range modules {
		if has := m.GetSpec().GetSource().GetUpload().GetDigest(); has != "" && has != p.Digest.String() {
			return usagef("--from %s: module %s has files of its own, as its source.upload.digest says: apply it by itself, or take the digest out to give it the files of %s, too", o.dir, m.GetMetadata().GetName(), o.dir)
		}
	}
	return nil
}

// upload sends the folder to the hub, unless it has it, and puts its digest into the modules that take it.
func (a *app) upload(ctx context.Context, o *fromFlag, found []resource.Resource) error {
	p, err := o.read(found)
	if p == nil || err != nil {
		return err
	}
	if err := o.ofAll(found, p); err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	sent, err := c.Upload(ctx, p.Digest.String(), p.Packed)
	if err != nil {
		return fmt.Errorf("%s: %w", o.dir, err)
	}
	if sent {
		a.footf("Uploaded %s: %s\n", o.dir, count(len(p.Files), "file"))
	}
	for _, m := range uploads(found) {
		m.Spec.Source.Upload.Digest = p.Digest.String()
	}
	return nil
}
