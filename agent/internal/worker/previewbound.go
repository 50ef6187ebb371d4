package worker

import (
	"context"
	"errors"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// bind evaluates the bindings that read objects, as a worker does, but for the watches: each object is asked for.
func (p *preview) bind(ctx context.Context, late []fleet.LateBinding) {
	if len(late) == 0 {
		return
	}
	values := nameless(assemble.LateValues(late, p.sync.Values, previewReader{ctx, p}))
	circle := assemble.ObjectCircle(late, usersOf(p.items), p.sync.Values)
	for _, it := range p.items {
		if it.late != nil {
			it.late = supply(it, p.sync.Values, values, circle)
		}
	}
}

// bound are the values that an item is read with.
func (p *preview) bound(it *item) map[string]string {
	if it.late == nil {
		return p.sync.Values
	}
	return it.late.values
}

// previewReader reads for a preview.
type previewReader struct {
	ctx context.Context
	p   *preview
}

// ReadField is what the cluster says of a field.
func (r previewReader) ReadField(_ string, f fleet.ObjectField) assemble.Read {
	return r.p.readField(r.ctx, f)
}

// ReadSecret is what the hub has sent. It sends what modules use that the cluster has.
func (r previewReader) ReadSecret(_ string, k fleet.SecretKey) assemble.Read {
	value, err := r.p.m.secrets.value(r.p.w.ref.Project, k)
	if err == nil {
		return assemble.Read{Value: value, Secret: true}
	}
	if last, known := r.p.m.lasts.get(r.p.w.ref, keyOfSecret(k)); known {
		return assemble.Read{Value: last.Value, Secret: true}
	}
	if errors.Is(err, fleet.ErrNotFound) {
		return r.p.absent(err)
	}
	return assemble.Read{Failed: r.p.unsent(err)}
}

// absent is of what is not there: which default it has by that is not known where it may have had a value.
func (p *preview) absent(why error) assemble.Read {
	if p.m.lasts.doubts(p.w.ref) {
		return assemble.Read{Failed: lostValue(why)}
	}
	return assemble.Read{Absent: why}
}

// unsent is of a secret whose values come with the module that uses it.
func (p *preview) unsent(err error) error {
	var f *apply.Failure
	if !errors.Is(err, errUnsent) || !errors.As(err, &f) {
		return err
	}
	comes := *f
	comes.Kind = errMadeFirst
	return &comes
}

func (p *preview) readField(ctx context.Context, f fleet.ObjectField) assemble.Read {
	path, err := wire.ParseFieldPath(f, f.Path)
	if err != nil {
		return assemble.Read{Failed: fleet.Invalidf("", "%s: %v", f.ID().Short(), err)}
	}
	s := &source{id: f.ID(), version: f.Version, path: path}
	if err := p.m.mayBind(p.w.ref, s.id); err != nil {
		return assemble.Read{Failed: err}
	}
	value, hides, err := p.valueOf(ctx, s)
	if err == nil {
		return assemble.Read{Value: value, Secret: hides}
	}
	if last, known := p.m.lasts.get(p.w.ref, keyOf(f)); known {
		return assemble.Read{Value: last.Value, Secret: last.Secret}
	}
	switch {
	case p.w.makes(s.id):
		return assemble.Read{Failed: madeFirst(s.id)}
	case errors.Is(err, fleet.ErrNotFound):
		return p.absent(err)
	}
	return assemble.Read{Failed: err}
}

func (p *preview) valueOf(ctx context.Context, s *source) (value string, hides bool, err error) {
	if s.resource, err = p.m.mapper.Resource(ctx, s.id, s.version); err != nil {
		s.resource, err = p.m.kindless(ctx, s, err)
	}
	if err != nil {
		return "", false, err
	}
	if err := s.settle(); err != nil {
		return "", false, err
	}
	object, err := p.m.readObject(ctx, s)
	if err != nil {
		return "", false, err
	}
	if value, err = s.value(object); err != nil {
		return "", false, err
	}
	return value, s.hides(p.m, object, value), nil
}

// awaits says what becomes of an object that refers to a binding without a value: what the module brings itself may give it one.
func (p *preview) awaits(it *item, out *fleet.PreviewedObject) bool {
	if !it.late.failed() {
		return false
	}
	f := it.late.fail
	out.Action, out.Reason, out.Message = fleet.PreviewRefuse, f.Reason, f.Message
	if errors.Is(f, errMadeFirst) {
		out.Action, out.Reason = fleet.PreviewChange, fleet.ReasonUnchecked
		if p.m.inventory.Get(it.entry.ID) == nil {
			out.Action = fleet.PreviewCreate
		}
	}
	return true
}
