package api

import (
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// originAfter is what a module comes from after a put: the set that it is put with, or what it was before. One of another set is refused,
// for that would put its own files again, or delete the module because they do not have it; take says that it has let go.
func originAfter(m *wire.Module, req *towlinev1.PutModuleRequest, had string) (string, error) {
	set := req.GetSet()
	if set != "" {
		if err := fleet.ValidateLabel(set); err != nil {
			return "", fleet.Invalid("set", err.Error())
		}
		set = fleet.SetOrigin(set)
	}
	switch {
	case req.GetTake():
		return set, nil
	case set == "" || had == "" || had == set:
		if set == "" {
			return had, nil
		}
		return set, nil
	}
	return "", fleet.Errorf(fleet.ErrPrecondition, "module %s is of %s, which prunes it: take it out of the files there, and apply it here with --take", m.Ref.Display(), had)
}
