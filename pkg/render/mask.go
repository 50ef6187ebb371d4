package render

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// shortest value that is masked wherever it stands: a shorter one is part of other words.
const shortest = 6

const (
	// shortestQuoted is the shortest value of a file that is masked where it is quoted.
	shortestQuoted = 3
	// quotesWithin is how many quotation marks a quoted value may itself have.
	quotesWithin = 8
)

// MaskQuoted takes values of files out of a message where it quotes one. Elsewhere they stay: most are words that say what is wrong.
func MaskQuoted(text string, values []any) string {
	words := map[string]bool{}
	eachText(values, func(s string) {
		if len(s) >= shortestQuoted {
			words[oneLine(s)], words[strings.Trim(strconv.Quote(s), `"`)] = true, true
		}
	})
	return maskQuoted(text, words)
}

// maskQuoted takes words out of a message where it quotes one. There may be as many as a file has values, so that the message is read once for all.
func maskQuoted(text string, words map[string]bool) string {
	delete(words, "")
	var out strings.Builder
	for {
		i := strings.IndexAny(text, quotationMarks)
		if i < 0 {
			return out.String() + text
		}
		out.WriteString(text[:i+1])
		mark := text[i]
		text = text[i+1:]
		if end := quotedEnd(text, mark, words); end > 0 {
			out.WriteString(fleet.Masked)
			text = text[end:]
		}
	}
}

// quotedEnd is where a text that begins behind a quotation mark ends one of the words; 0: it is none.
func quotedEnd(text string, mark byte, words map[string]bool) int {
	for end, n := 0, 0; n <= quotesWithin; n++ {
		next := strings.IndexByte(text[end:], mark)
		if next < 0 {
			return 0
		}
		if end += next; words[text[:end]] {
			return end
		}
		end++
	}
	return 0
}

const quotationMarks = "'\"`"

// MaskValues takes a module's own values out of a message, as they are and as templates usually write them.
func MaskValues(text string, values json.RawMessage) string {
	var v any
	dec := json.NewDecoder(bytes.NewReader(values))
	dec.UseNumber()
	if len(values) == 0 || dec.Decode(&v) != nil {
		return text
	}
	var words []string
	quoted := map[string]bool{}
	eachText(v, func(s string) {
		words = append(words, formsOf(s)...)
		quoted[oneLine(s)] = true
	})
	return maskQuoted(fleet.MaskWords(text, words, shortest), quoted) // the long ones first, which may quote a short one
}

// formsOf are the ways in which a message may show a value: whole, a line of it, quoted, and encoded.
func formsOf(s string) []string {
	out := []string{oneLine(s), strings.Trim(strconv.Quote(s), `"`), base64.StdEncoding.EncodeToString([]byte(s))}
	for line := range strings.Lines(s) {
		out = append(out, oneLine(line))
	}
	return out
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// eachText calls fn for each text and number of a value.
func eachText(v any, fn func(string)) {
	switch v := v.(type) {
	case string:
		fn(v)
	case json.Number:
		fn(v.String())
		if f, err := v.Float64(); err == nil {
			fn(strconv.FormatFloat(f, 'g', -1, 64)) // as a template sees it
		}
	case []any:
		for _, x := range v {
			eachText(x, fn)
		}
	case map[string]any:
		for _, x := range v {
			eachText(x, fn)
		}
	}
}

// maskError is an error of a package without the values of the module.
func maskError(err error, values json.RawMessage) error {
	var field *fleet.FieldError
	var named *fleet.Named
	switch {
	case err == nil || len(values) == 0:
		return err
	case errors.As(err, &field):
		return fleet.Invalid(field.Path, MaskValues(field.Message, values))
	case errors.As(err, &named):
		return fleet.Errorf(named.Kind, "%s", MaskValues(named.Message, values))
	}
	return err
}
