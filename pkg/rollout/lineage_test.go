package rollout_test

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/rollout"
)

// TestLineage tells the acceptance scenarios 10 to 20 of the systems that came before, by their numbers: as they were,
// adapted to our rules, or dropped, with the reason.
func TestLineage(t *testing.T) {
	threeStages := `
fleet dev1,dev2 at=r1 env=dev
fleet staging1 at=r1 env=staging
fleet prod1,prod2 at=r1 env=prod
stage dev sel=env:dev
stage staging sel=env:staging
stage prod sel=env:prod`
	for _, c := range []struct {
		number, fate, script string
		want                 string // the lines that decide; each must be seen in this order
	}{
		{"10", "as it was: dev, staging and prod follow in order, and the next revision repeats it", threeStages + `
start r2 from=r1
ready dev1,dev2
ready staging1
ready prod1,prod2
start r3 from=r2
ready dev1,dev2`, `step 1: dev1,dev2 to r2
step 2: staging1 to r2
step 3: prod1,prod2 to r2
shop/1: Progressing → Succeeded
step 1: dev1,dev2 to r3
step 2: staging1 to r3`},
		{"11", "as it was: while one target lacks the revision or is unready nothing is promoted, with a reason; then it clears", threeStages + `
start r2 from=r1
ready dev1
unready dev2 m="1 of 2 pods ready"
explain
ready dev2`, `step 1: dev1,dev2 to r2
! Stage dev  Progressing  code="NotDone" total=2 succeeded=1 running=1
! Cluster dev2  NotReady  detail="1 of 2 pods ready"
step 2: staging1 to r2`},
		{"12", "as it was: a stage and revision are attempted once, however often they are reconciled, and a record exists", threeStages + `
start r2 from=r1
decide
decide
decide
status`, `step 1: dev1,dev2 to r2
moved 2
dev Progressing: 0/2 done, 2 running`},
		{"13", "adapted: what must run is in the store, written with the change; the hub that is started again goes on with it", threeStages + `
start r2 from=r1
ready dev1,dev2
start r3 from=r1
ready dev1,dev2
ready staging1
ready prod1,prod2`, `step 1: dev1,dev2 to r2
step 2: staging1 to r2
step 1: dev1,dev2 to r3
step 2: staging1 to r3
step 3: prod1,prod2 to r3
shop/2: Progressing → Succeeded`},
		{"14", "as it was: the same id keeps its states, a new id begins anew; an unknown stage is refused", threeStages + `
start r2 from=r1
ready dev1,dev2
decide
clusters
promote stage=nowhere by=bob
start r2 from=r1
clusters`, `dev1 dev Succeeded r2
shop/1 is in stage staging, not nowhere
dev1 dev Succeeded r2
staging1 staging Progressing r2`},
		{"15", "adapted: a stage waits for its unready clusters while siblings run; a fatal failure stops at once; a finished rollout never changes", threeStages + `
strategy onFailure=Abort
start r2 from=r1
unready dev1 m="not yet"
ready dev2
ready dev1
fail staging1 Fatal m="will never work"
ready staging1
status`, `dev2 Progressing → Succeeded
dev1 Progressing → Succeeded
step 2: staging1 to r2
staging1 Progressing → Failed (Fatal detail="will never work")
shop/1: Progressing → Aborted (TooManyFailures
staging1 Failed → Succeeded
shop/1 Aborted`},
		{"16", "adapted: a change while one runs supersedes it by default instead of being refused; Reject refuses it; abort is allowed, which KUDO refused; a label change moves nothing", threeStages + `
start r2 from=r1
put
label prod1 env=prod extra=label
successor 2
abort by=bob
strategy onSupersede=Reject
start r3 from=r1
put
abort by=bob`, `StartNow
shop/1: Progressing → Superseded
shop/1 has ended: Superseded
Refused
> accepted
shop/2: Progressing → Aborted`},
		{"17", "adapted: deleting the module ends its rollout once and for all; no verb brings it back", threeStages + `
start r2 from=r1
delete-module
resume by=bob
ready dev1,dev2`, `shop/1: Progressing → Aborted (ModuleDeleted
shop/1 has ended: Aborted`},
		{"18", "adapted to clusters: one that is given the module, loses it and is given it again has it in the end", `
fleet c1..c3 at=r1
start r2 from=r1
ready c1..c3
unselect c1
removed c1
select c1
ready c1
status`, `step 1: c1,c2,c3 to r2
step 2: c1 leave
c1 Progressing → Removed
step 3: c1 to r2
succeeded 3`},
		{"19", "as it was: a Job that fails for good is a failure, not endless progress", `
fleet c1 at=r1
start r2 from=r1
fail c1 JobFailed m="BackoffLimitExceeded"`, `c1 Progressing → Failed (JobFailed detail="BackoffLimitExceeded")
shop/1: Progressing → Paused`},
	} {
		t.Run(c.number, func(t *testing.T) {
			w := newWorld(t)
			for line := range strings.SplitSeq(strings.TrimSpace(c.script), "\n") {
				w.command(line)
			}
			seen := w.flush()
			rest := seen
			for want := range strings.SplitSeq(c.want, "\n") {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("%s\nnot seen, or not in this order: %q in\n%s", c.fate, want, seen)
				}
				rest = after
			}
		})
	}
	t.Run("20", func(t *testing.T) {
		// Dropped: KUDO looked again after 1 s to 60 s, growing with age, because some changes gave it no event. Here every
		// report decides anew, and WakeAt is the exact time of the next deadline, soak, window, check or expiry.
		w := newWorld(t)
		w.command("fleet c1 at=r1")
		w.command("start r2 from=r1")
		if want := epoch.Add(rollout.DefaultProgressDeadline); !w.last.WakeAt.Equal(want) {
			t.Errorf("wakes at %s, want the deadline, %s", w.last.WakeAt, want)
		}
		w.command("ready c1")
		if !w.last.WakeAt.IsZero() {
			t.Errorf("a rollout that has ended wakes at %s", w.last.WakeAt)
		}
	})
}
