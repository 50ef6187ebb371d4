package source

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// validators are what a server said of a file, by which it tells whether that is still the one. The zero validators are none.
type validators struct {
	etag, modified string
	at             time.Time // when all of the file was fetched
}

const (
	// settled is how old a file has to be for the second of its change to name it: it may change again within that.
	settled = time.Minute
	// maxUnread is for how long what a server says of a file stands for it. One that is put back to an older file has an older time, and many
	// servers call that unchanged; and where tags are made of that time and the length, as nginx does, files that a build gives one time have one tag.
	maxUnread = time.Hour
)

// validatorsOf are those of an answer. What was redirected has none: next time it may lead to another file, with tags and times of its own.
func validatorsOf(h http.Header, redirected bool, now time.Time) validators {
	v := validators{etag: h.Get("ETag"), at: now}
	if redirected {
		return validators{}
	}
	changed, err := http.ParseTime(h.Get("Last-Modified"))
	if served, bad := http.ParseTime(h.Get("Date")); err == nil && bad == nil && served.Sub(changed) >= settled {
		v.modified = h.Get("Last-Modified")
	}
	return v
}

// ask puts the question whether the file is still the one into a request.
func (v validators) ask(h http.Header, now time.Time) (asks bool) {
	if age := now.Sub(v.at); age < 0 || age >= maxUnread {
		return false
	}
	if v.etag != "" {
		h.Set("If-None-Match", v.etag)
	}
	if v.modified != "" {
		h.Set("If-Modified-Since", v.modified)
	}
	return v.etag != "" || v.modified != ""
}

// hold reports that the answer "not modified" is one to what was asked: of the same file, of the same time.
func (v validators) hold(h http.Header, redirected bool) bool {
	if redirected {
		return false
	}
	if tag := h.Get("ETag"); tag != "" && v.etag != "" && strings.TrimPrefix(tag, "W/") != strings.TrimPrefix(v.etag, "W/") {
		return false
	}
	changed := h.Get("Last-Modified")
	return v.etag != "" || changed == "" || changed == v.modified
}

// String is what is kept of them beside an artifact.
func (v validators) String() string {
	return url.Values{"etag": {v.etag}, "modified": {v.modified}, "at": {strconv.FormatInt(v.at.Unix(), 10)}}.Encode()
}

func readValidators(text string) validators {
	q, err := url.ParseQuery(text)
	at, bad := strconv.ParseInt(q.Get("at"), 10, 64)
	if err != nil || bad != nil {
		return validators{}
	}
	return validators{etag: q.Get("etag"), modified: q.Get("modified"), at: time.Unix(at, 0)}
}

// revalidation is a fetch of a file that may be known already.
type revalidation struct {
	known validators // of what is known; zero: nothing is
	next  validators // of what was fetched
	same  bool       // what is known is still the one
}

// notModified takes the answer that a file is still the one. An answer to something else is an error, after which all of it is fetched.
func (r *revalidation) notModified(h http.Header, redirected bool) error {
	if r.same = r.known.hold(h, redirected); r.same {
		return nil
	}
	r.known = validators{}
	return &statusError{code: http.StatusNotModified}
}
