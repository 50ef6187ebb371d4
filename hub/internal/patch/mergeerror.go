package patch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// mergeError says why a strategic merge failed, by field and path alone. The library's own text may have all of a map in it, with values
// that those who read it may not see.
func mergeError(err error, value, merge map[string]any, meta strategicpatch.LookupPatchMeta) error {
	for _, of := range []struct {
		what  string
		value map[string]any
	}{{"the patch", merge}, {"the object", value}} {
		if path, key := unkeyed(of.value, meta); path != "" {
			return fmt.Errorf("%s has no %s in %s, by which the items of that list are told apart", of.what, key, path)
		}
	}
	if slices.ContainsFunc(plainErrors, func(plain error) bool { return errors.Is(err, plain) }) ||
		slices.ContainsFunc(plainBeginnings, func(text string) bool { return strings.HasPrefix(err.Error(), text) }) {
		return err
	}
	return errors.New("the patch cannot be merged: look at its lists, and at its keys that begin with $")
}

// plainErrors and plainBeginnings are what the library says with no more than names of fields and of Go types in it.
var (
	plainErrors = []error{mergepatch.ErrBadJSONDoc, mergepatch.ErrNoListOfLists, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrPatchContentNotMatchRetainKeys, mergepatch.ErrUnsupportedStrategicMergePatchFormat}
	plainBeginnings = []string{"unable to find api field in struct ", "expected a ", "expected slice or array type"}
)

// unkeyed is the path of an item of a list that is merged by a key which it does not have, and that key; empty: there is none.
func unkeyed(value map[string]any, meta strategicpatch.LookupPatchMeta) (path, key string) {
	for _, name := range slices.Sorted(maps.Keys(value)) {
		var found string
		switch v := value[name].(type) {
		case map[string]any:
			below, _, err := meta.LookupPatchMetadataForStruct(name)
			if err != nil {
				continue
			}
			if found, key = unkeyed(v, below); found != "" {
				return name + "." + found, key
			}
		case []any:
			if found, key = unkeyedItem(name, v, meta); found != "" {
				return name + found, key
			}
		}
	}
	return "", ""
}

func unkeyedItem(name string, items []any, meta strategicpatch.LookupPatchMeta) (path, key string) {
	below, how, err := meta.LookupPatchMetadataForSlice(name)
	if err != nil || how.GetPatchMergeKey() == "" || !slices.Contains(how.GetPatchStrategies(), "merge") {
		return "", ""
	}
	for i, item := range items {
		v, isMap := item.(map[string]any)
		if !isMap {
			continue
		}
		at := fmt.Sprintf("[%d]", i)
		if _, has := v[how.GetPatchMergeKey()]; !has && v["$patch"] == nil {
			return at, how.GetPatchMergeKey()
		}
		if found, key := unkeyed(v, below); found != "" {
			return at + "." + found, key
		}
	}
	return "", ""
}
