package resource

import (
	"errors"
	"fmt"
	"strings"
)

// Unique refuses resources of one kind, project and name: the second would take the place of the first, and what one of them was meant to be
// would be missing. The error joins one Error for each that is there again.
func Unique(found []Resource) error {
	type identity struct{ kind, project, name string }
	first := map[identity]Resource{}
	var errs []error
	for _, r := range found {
		id := identity{r.Kind, r.Meta().GetProject(), r.Meta().GetName()}
		one, again := first[id]
		if !again {
			first[id] = r
			continue
		}
		errs = append(errs, &Error{Source: r.Source, Line: r.Line, Object: strings.ToLower(r.Kind) + " " + id.name,
			Message: fmt.Sprintf("is in %s:%d, too, and one would take the place of the other: give one of them another name, or take it away", one.Source, one.Line)})
	}
	return errors.Join(errs...)
}
