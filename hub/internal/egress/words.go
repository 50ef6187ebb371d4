package egress

import (
	"encoding/base64"
	"net/url"

	"towline.dev/towline/pkg/fleet"
)

// How long a part of an address is that is kept out of what a server says: shorter ones are parts of other words.
const (
	shortestPassword = 4
	shortestWord     = 8
)

// Hush masks in what a server says the parts of the address it was asked at that may be secrets: many servers repeat them. The query's value
// that is shown is none, nor are the words of a path; others may be given, such as that path.
func Hush(text string, u *url.URL, shown string, others ...string) string {
	if u == nil {
		return text
	}
	if u.User != nil {
		name := u.User.Username()
		password, _ := u.User.Password()
		text = fleet.MaskWords(text, inAddress(base64.StdEncoding.EncodeToString([]byte(name+":"+password)), password), shortestPassword)
		others = append(others, name)
	}
	for key, values := range u.Query() {
		if key != shown {
			others = append(others, values...)
		}
	}
	return fleet.MaskWords(text, inAddress(others...), shortestWord)
}

// inAddress are words as they are and as they stand in addresses.
func inAddress(words ...string) (out []string) {
	for _, w := range words {
		out = append(out, w, url.QueryEscape(w), url.PathEscape(w))
	}
	return out
}
