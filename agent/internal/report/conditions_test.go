package report

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

func woken(c *Conditions) bool {
	select {
	case <-c.Changed():
		return true
	default:
		return false
	}
}

func TestConditionsSayWhatChanged(t *testing.T) {
	c := NewConditions()
	at := time.UnixMilli(1_700_000_000_000)
	refused := fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer", Message: "port 40123", Since: at}
	c.Set(refused)
	if !woken(c) || !c.Holds(refused.Type) {
		t.Error("a new condition wakes nobody")
	}
	again := refused
	again.Message, again.Since = "port 40124", at.Add(time.Second)
	c.Set(again)
	if woken(c) || c.All()[0] != refused {
		t.Errorf("other words for the same are told: %+v", c.All())
	}
	other := fleet.Condition{Type: refused.Type, Status: fleet.ConditionFalse, Reason: "Forbidden"}
	c.Set(other)
	if !woken(c) || c.All()[0].Reason != "Forbidden" || !c.All()[0].Since.Equal(at) {
		t.Errorf("another reason: %+v", c.All())
	}
	c.Set(fleet.Condition{Type: "A", Status: fleet.ConditionTrue})
	if all := c.All(); len(all) != 2 || all[0].Type != "A" || all[1].Type != refused.Type {
		t.Errorf("all: %+v", all)
	}
	woken(c)
	c.Clear(refused.Type)
	if !woken(c) || c.Holds(refused.Type) || len(c.All()) != 1 {
		t.Errorf("cleared: %+v", c.All())
	}
	c.Clear(refused.Type)
	if woken(c) {
		t.Error("what did not hold was cleared, and told")
	}
}
