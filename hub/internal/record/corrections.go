package record

import (
	"bytes"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
)

// day is how far back corrections are counted, in hours.
const day = 24

// AddCorrections is the count by hour after a report. old is the record before it, or nil. An agent counts from zero
// again with each bundle that it takes and each time it starts, so that a number of another bundle, or a smaller one, is
// all new.
func AddCorrections(old *storev1.ObservedRecord, st *agentv1.SyncStatus, now time.Time) []*storev1.HourCount {
	hour := hourOf(now)
	fresh := st.GetCorrections()
	before := old.GetStatus()
	if bytes.Equal(before.GetBundle(), st.GetBundle()) && before.GetCorrections() <= fresh {
		fresh -= before.GetCorrections()
	}
	out := ofDay(old, hour)
	if fresh == 0 {
		return out
	}
	if n := len(out); n > 0 && out[n-1].GetHour() >= hour {
		last := out[n-1]
		out[n-1] = &storev1.HourCount{Hour: last.GetHour(), Count: last.GetCount() + fresh}
		return out
	}
	return append(out, &storev1.HourCount{Hour: hour, Count: fresh})
}

// CorrectionsOfDay is how many corrections the hub heard of in the last 24 hours, to the hour.
func CorrectionsOfDay(o *storev1.ObservedRecord, now time.Time) (n int64) {
	for _, c := range ofDay(o, hourOf(now)) {
		n += int64(c.GetCount())
	}
	return n
}

// ofDay are the hours with corrections in the day up to an hour.
func ofDay(o *storev1.ObservedRecord, hour int64) (out []*storev1.HourCount) {
	for _, c := range o.GetCorrections() {
		if c.GetHour() > hour-day {
			out = append(out, c)
		}
	}
	return out
}

func hourOf(t time.Time) int64 { return t.Unix() / int64(time.Hour/time.Second) }
