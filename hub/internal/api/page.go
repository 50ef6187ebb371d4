package api

import (
	"encoding/base64"
	"slices"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/fleet"
)

const (
	defaultPage = 500
	maxPage     = 5000
	// pageBytes ends a page early, so that it is no larger than what clients take.
	pageBytes = 2 << 20
)

// line is a row of a list that is made when it is shown. It is shown under the view that it was made in.
type line[T proto.Message] struct {
	key  string
	show func() T
}

// shown is a line of a row that is made.
func shown[T proto.Message](row T, key func(T) string) line[T] {
	return line[T]{key: key(row), show: func() T { return row }}
}

func shownAll[T proto.Message](rows []T, key func(T) string) []line[T] {
	out := make([]line[T], len(rows))
	for i, row := range rows {
		out[i] = shown(row, key)
	}
	return out
}

// sortLines sorts by key.
func sortLines[T proto.Message](lines []line[T]) {
	slices.SortStableFunc(lines, func(a, b line[T]) int { return strings.Compare(a.key, b.key) })
}

// showAll shows every line.
func showAll[T proto.Message](lines []line[T]) []T {
	rows := make([]T, len(lines))
	for i, l := range lines {
		rows[i] = l.show()
	}
	return rows
}

// listRequest asks for a page of a list.
type listRequest interface {
	GetPageSize() int32
	GetPageToken() string
	GetTotal() bool
}

// totalOf is what a response says of the whole list: how many match, if the request asks for that.
func totalOf(req listRequest, n int) int32 {
	if !req.GetTotal() {
		return 0
	}
	return int32(n)
}

// paginate shows the part of the lines that a request asks for. Lines are sorted; the token is the last key of the page before,
// so that rows that come or go between pages never repeat or skip others.
func paginate[T proto.Message](req listRequest, lines []line[T]) (part []T, next string, total int32, err error) {
	after, err := tokenOf(req)
	if err != nil {
		return nil, "", 0, err
	}
	p := newPager[T](req)
	for i := sort.Search(len(lines), func(i int) bool { return lines[i].key > after }); i < len(lines); i++ {
		if !p.add(lines[i].key, lines[i].show()) {
			break
		}
	}
	return p.rows, p.next, totalOf(req, len(lines)), nil
}

// tokenOf is the key behind which a page begins; empty: at the first.
func tokenOf(req listRequest) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return "", fleet.Invalidf("page_token", "%.40q is no token of a list", req.GetPageToken())
	}
	return string(raw), nil
}

// pager collects the rows of a page, which come in the order of their keys.
type pager[T proto.Message] struct {
	limit, bytes int
	last         string
	rows         []T
	next         string // not empty: the page is full, and there is more
}

func newPager[T proto.Message](req listRequest) *pager[T] {
	limit := int(req.GetPageSize())
	if limit <= 0 {
		limit = defaultPage
	}
	return &pager[T]{limit: min(limit, maxPage)}
}

// add takes the next row, or none any more.
func (p *pager[T]) add(key string, row T) bool {
	if p.full() {
		return false
	}
	size := proto.Size(row)
	if len(p.rows) == p.limit || p.bytes+size > pageBytes && len(p.rows) > 0 {
		p.end()
		return false
	}
	p.rows, p.last, p.bytes = append(p.rows, row), key, p.bytes+size
	return true
}

// full reports that no row goes in any more.
func (p *pager[T]) full() bool { return p.next != "" }

// end says that there is more than the page has.
func (p *pager[T]) end() { p.next = base64.RawURLEncoding.EncodeToString([]byte(p.last)) }
