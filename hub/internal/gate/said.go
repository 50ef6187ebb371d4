package gate

import (
	"strings"

	"towline.dev/towline/hub/internal/egress"
)

// said is the beginning of what a server answers, as people may read it: many repeat what they were asked with.
func (r *request) said(answer []byte) string {
	var path []string
	if r.hidePath {
		path = append(strings.Split(r.url.Path, "/"), r.url.Path)
	}
	return excerpt([]byte(egress.Hush(string(answer), r.url, r.shown, path...)))
}
