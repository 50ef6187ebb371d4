package rollout

import (
	"fmt"
	"strconv"
	"strings"
)

// Amount is a number, or a percentage of a total that is frozen when the rollout starts. The zero Amount is unset.
type Amount struct {
	Set     bool `json:"set,omitempty"`
	Percent bool `json:"percent,omitempty"`
	N       int  `json:"n,omitempty"`
}

// Number is an Amount of n.
func Number(n int) Amount { return Amount{Set: true, N: n} }

// Percent is an Amount of n percent.
func Percent(n int) Amount { return Amount{Set: true, Percent: true, N: n} }

// ParseAmount reads "3", "25%" or "" for unset.
func ParseAmount(s string) (Amount, error) {
	if s == "" {
		return Amount{}, nil
	}
	digits, percent := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || digits[0] == '+' || n > 1<<30 {
		return Amount{}, fmt.Errorf("%.40q is no number or percentage; write 3 or 25%%", s)
	}
	if percent && n > 100 {
		return Amount{}, fmt.Errorf("%s is more than 100%%", s)
	}
	return Amount{Set: true, Percent: percent, N: n}, nil
}

// String is the form that ParseAmount reads.
func (a Amount) String() string {
	switch {
	case !a.Set:
		return ""
	case a.Percent:
		return strconv.Itoa(a.N) + "%"
	}
	return strconv.Itoa(a.N)
}

// Resolve is the number that a stands for: a percentage of total is rounded down; an unset Amount is 0.
func (a Amount) Resolve(total int) int {
	if a.Percent {
		return total * a.N / 100
	}
	return a.N
}

// limit is how many may move at once: unset means all, a percentage is rounded down but never below one.
func (a Amount) limit(total int) int {
	if !a.Set {
		return total
	}
	return max(a.Resolve(total), 1)
}
