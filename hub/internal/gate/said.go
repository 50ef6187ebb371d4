package gate

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// shortest is how long a part of an address is that is kept out of what a server says: "u" and "v1" are in many words.
const shortest = 4

// said is the beginning of what a server answers, as people may read it: many repeat what they were asked with.
func (r *request) said(answer []byte) string {
	text := string(answer)
	for _, secret := range r.secrets() {
		text = strings.ReplaceAll(text, secret, fleet.Masked)
	}
	return excerpt([]byte(text))
}

// secrets are the parts of the question that nobody may read, the longest first.
func (r *request) secrets() []string {
	var out []string
	add := func(texts ...string) {
		for _, text := range texts {
			for _, form := range []string{text, url.QueryEscape(text), url.PathEscape(text)} {
				if len(form) >= shortest {
					out = append(out, form)
				}
			}
		}
	}
	if u := r.url.User; u != nil {
		password, _ := u.Password()
		add(u.Username(), password, base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	for key, values := range r.url.Query() {
		if key != r.shown {
			add(values...)
		}
	}
	if r.hidePath {
		add(r.url.Path)
		add(strings.Split(r.url.Path, "/")...)
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}
