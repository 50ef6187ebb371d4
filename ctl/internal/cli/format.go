package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// span is a length of time for people: 42s, 6m12s, 41m, 3h05m, 30h, 2d.
func span(d time.Duration) string {
	d = max(d, 0)
	two := func(whole, rest int, unit, small string) string {
		if rest == 0 {
			return fmt.Sprintf("%d%s", whole, unit)
		}
		return fmt.Sprintf("%d%s%02d%s", whole, unit, rest, small)
	}
	seconds, minutes, hours := int(d/time.Second), int(d/time.Minute), int(d/time.Hour)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", seconds)
	case d < 10*time.Minute:
		return two(minutes, seconds%60, "m", "s")
	case d < time.Hour:
		return fmt.Sprintf("%dm", minutes)
	case d < 10*time.Hour:
		return two(hours, minutes%60, "h", "m")
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", hours)
	}
	return fmt.Sprintf("%dd", hours/24)
}

// spanOf reads what span writes.
func spanOf(s string) (time.Duration, error) {
	days, ok := strings.CutSuffix(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.Atoi(days)
	return time.Duration(n) * 24 * time.Hour, err
}

// since is how long ago t was; "-" without t.
func (a *app) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return span(a.Now().Sub(t.AsTime()))
}

// clock is the time of day, with the date if it is more than half a day away.
func (a *app) clock(t *timestamppb.Timestamp) string { return a.clockAs(t, "15:04:05") }

func (a *app) clockAs(t *timestamppb.Timestamp, layout string) string {
	if t == nil {
		return "-"
	}
	at := t.AsTime().In(a.Zone)
	if away := a.Now().Sub(at); away > 12*time.Hour || away < -12*time.Hour {
		return at.Format("2006-01-02 15:04")
	}
	return at.Format(layout)
}

// stamp is a full time for logs and descriptions.
func (a *app) stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().In(a.Zone).Format(time.RFC3339)
}

// number is n with thousands set apart: 4,200.
func number[T int | int32 | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// count is "1 cluster" or "4,200 clusters".
func count[T int | int32 | int64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}

func revision(n int64) string {
	if n == 0 {
		return "-"
	}
	return "r" + strconv.FormatInt(n, 10)
}

// move is r41 → r42; the target alone when nothing was there before.
func move(from, to int64) string {
	if from == 0 || from == to || to == 0 {
		return revision(max(to, from*boolean(to == 0)))
	}
	return revision(from) + " → " + revision(to)
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "-"
	}
	var out []string
	for _, k := range sortedKeys(labels) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// moduleName is the name alone in the default project, else project/name.
func moduleName(project, name string) string {
	if project == "" {
		return name
	}
	return fleet.ModuleRef{Project: project, Name: name}.Display()
}

func text(s string) table.Cell { return table.Cell{Text: s} }

func textf(format string, args ...any) table.Cell { return text(fmt.Sprintf(format, args...)) }

func num[T int | int32 | int64 | uint64](n T) table.Cell { return text(fmt.Sprint(n)) }

func colored(c table.Color, s string) table.Cell { return table.Cell{Text: s, Color: c} }

// bad is a number that is red unless it is 0.
func bad(n int32) table.Cell {
	if n == 0 {
		return num(n)
	}
	return colored(table.Red, strconv.Itoa(int(n)))
}

// graded is a number in the colour unless it is 0.
func graded(c table.Color, n int32) table.Cell {
	if n == 0 {
		return num(n)
	}
	return colored(c, strconv.Itoa(int(n)))
}

// stateColors says what the words of the API mean.
var stateColors = map[string]table.Color{
	"Succeeded": table.Green, "Healthy": table.Green, "Ready": table.Green, "Synced": table.Green, "Successful": table.Green, "Valid": table.Green,
	"Progressing": table.Yellow, "Waiting": table.Yellow, "Pending": table.Yellow, "Soaking": table.Yellow, "Gated": table.Yellow,
	"Paused": table.Yellow, "RollingBack": table.Yellow, "OutOfSync": table.Yellow, "Drifted": table.Yellow, "Held": table.Yellow,
	"Cordoned": table.Yellow, "Removing": table.Yellow, "Deleting": table.Yellow, "Terminating": table.Yellow, "Running": table.Yellow,
	"Applied": table.Green, "Conflicted": table.Yellow,
	"Inconclusive": table.Yellow, "Suspended": table.Yellow, "Unused": table.Yellow,
	"Failed": table.Red, "TimedOut": table.Red, "Degraded": table.Red, "Conflict": table.Red, "Missing": table.Red,
	"Aborted": table.Red, "RolledBack": table.Red, "Revoked": table.Red, "Locked": table.Red, "Error": table.Red, "Damaged": table.Red,
	"Disconnected": table.Grey, "Unknown": table.Grey, "Deferred": table.Grey, "Superseded": table.Grey, "Skipped": table.Grey,
	"Removed": table.Grey, "ToApply": table.Grey, "Expired": table.Grey, "Used": table.Grey,
}

// state is a word of the API in its colour; the first word counts.
func state(s string) table.Cell {
	word, _, _ := strings.Cut(s, " ")
	return table.Cell{Text: orDash(s), Color: stateColors[strings.TrimRight(word, ",:")]}
}

// shortKinds are kinds that everybody abbreviates.
var shortKinds = map[string]string{"HorizontalPodAutoscaler": "HPA", "PersistentVolumeClaim": "PVC", "PersistentVolume": "PV",
	"CustomResourceDefinition": "CRD", "PodDisruptionBudget": "PDB"}

func objectText(o *v1.ObjectReference) string {
	kind := o.GetKind()
	if short, ok := shortKinds[kind]; ok {
		kind = short
	}
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}
