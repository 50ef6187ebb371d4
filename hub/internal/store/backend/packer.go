package backend

import (
	"slices"
	"strings"
)

// Packer fills a transaction with parts that may share one.
type Packer struct {
	limits  Limits
	parts   []Part
	largest int
	bytes   int
	touched map[string]struct{}
}

// NewPacker makes one for transactions within the limits.
func NewPacker(l Limits) *Packer {
	return &Packer{limits: l, touched: make(map[string]struct{})}
}

// Add takes the part, or says that it must go into a later transaction. An empty packer takes every part. No key of it,
// compared or changed, may be changed by a part before it: conditions are judged on the state before the transaction.
func (p *Packer) Add(part Part) bool {
	size, bytes := part.Size(), part.Bytes()
	largest := max(p.largest, size)
	if len(p.parts) > 0 {
		if len(p.parts)+1+largest > p.limits.Ops || p.bytes+bytes > p.limits.Bytes || p.overlaps(part) {
			return false
		}
	}
	for _, o := range part.Then {
		p.touched[o.Key] = struct{}{}
	}
	p.parts, p.largest, p.bytes = append(p.parts, part), largest, p.bytes+bytes
	return true
}

func (p *Packer) overlaps(part Part) bool {
	for _, o := range part.Then {
		if _, ok := p.touched[o.Key]; ok {
			return true
		}
	}
	return slices.ContainsFunc(part.If, p.changes)
}

// changes reports that what is compared may be changed by a part that was taken.
func (p *Packer) changes(c Compare) bool {
	if !c.Prefix {
		_, ok := p.touched[c.Key]
		return ok
	}
	for key := range p.touched {
		if strings.HasPrefix(key, c.Key) {
			return true
		}
	}
	return false
}

// Parts are those that were taken.
func (p *Packer) Parts() []Part { return p.parts }
