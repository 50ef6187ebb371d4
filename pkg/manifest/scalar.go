package manifest

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle

// scalar reads a scalar as kubectl does (YAML 1.1), but refuses what kubectl changes without a word: numbers that do
// not fit, and NaN and infinity, which JSON does not have.
func (r *reader) scalar(n *yaml.Node) (any, error) {
	tagged := n.Style&yaml.TaggedStyle != 0
	if tagged && n.Tag == "!!str" || !tagged && n.Style&quoted != 0 {
		return n.Value, nil
	}
	v, err := plain(n.Value)
	if err != nil {
		return nil, r.fail(n, "%s", err) // without the value, which may be that of a Secret
	}
	if !tagged {
		return v, nil
	}
	switch n.Tag {
	case "!!null", "!!bool", "!!int", "!!float":
	default:
		return nil, r.tagError(n)
	}
	if i, ok := v.(int64); ok && n.Tag == "!!float" {
		v = float64(i)
	}
	if !hasTag(v, n.Tag) {
		return nil, r.fail(n, "is no %s", n.Tag)
	}
	return v, nil
}

func (r *reader) tagError(n *yaml.Node) error {
	return r.fail(n, "tag %s is not allowed: write the value without it (binary content as a quoted base64 string)", clip(n.Tag))
}

func hasTag(v any, tag string) bool {
	switch v.(type) {
	case nil:
		return tag == "!!null"
	case bool:
		return tag == "!!bool"
	case int64:
		return tag == "!!int"
	case float64:
		return tag == "!!float"
	}
	return false
}

var (
	errTooLarge  = errors.New("is a number too large to be kept exactly: quote it if it is text")
	errNotFinite = errors.New("is a number that JSON does not have: quote it if it is text")

	floatForm   = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	integerForm = regexp.MustCompile(`^[-+]?[0-9]+$`)
)

// plain reads an unquoted scalar.
func plain(s string) (any, error) {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nil, nil
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, nil
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, nil
	case ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF":
		return nil, errNotFinite
	}
	if c := s[0]; c != '.' && c != '+' && c != '-' && (c < '0' || c > '9') {
		return s, nil
	}
	return number(s)
}

// number reads what begins like a number; most of it is text, such as 1.2.3 or 10Gi.
func number(s string) (any, error) {
	digits := strings.ReplaceAll(s, "_", "")
	if s[0] == '.' { // here kubectl takes a _ between two digits only
		if _, err := strconv.ParseFloat(s, 64); errors.Is(err, strconv.ErrSyntax) {
			return s, nil
		}
	}
	if behind, binary := strings.CutPrefix(digits, "0b"); binary { // kubectl takes a sign here, too
		if i, err := strconv.ParseInt(behind, 2, 64); err == nil {
			return i, nil
		}
	}
	i, err := strconv.ParseInt(digits, 0, 64)
	if err == nil {
		return i, nil
	}
	if errors.Is(err, strconv.ErrRange) {
		return nil, errTooLarge
	}
	if !floatForm.MatchString(digits) {
		return s, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsInf(f, 0) || integerForm.MatchString(digits) && math.Abs(f) > 1<<53 {
		return nil, errTooLarge
	}
	return f, nil
}
