package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// exact are changes of Go's runtime, in the sources of the standard library, that have a life be the same each time: in a bubble what the
// runtime draws at random (the order of maps, of ready cases of a select, of timers at one instant, math/rand) comes from the bubble's
// clock, and no clock of the machine has goroutines take turns.
var exact = []change{
	// What is drawn begins anew with each instant, so that a cache which is filled already changes one instant and no more.
	{"runtime/synctest.go", "\tnow     int64  // current fake time\n", "\tnow     int64  // current fake time\n\tdrawn   [4]uint64 // random numbers at this time, by what draws\n"},
	{"runtime/synctest.go", "\t\tbubble.now = next\n", "\t\tbubble.now = next\n\t\tbubble.drawn = [4]uint64{}\n"},
	{"runtime/synctest.go", "// changegstatus is called when the non-lock status of a g changes.\n", `// draw is a random number that the clock of the bubble decides, and how often its kind drew at this time. Maps draw the same then.
//
//go:nosplit
func (bubble *synctestBubble) draw(kind int) uint64 {
	if kind != 0 {
		bubble.drawn[kind&3]++
	}
	z := uint64(bubble.now)*0xd1342543de82ef95 + (bubble.drawn[kind&3]<<2|uint64(kind))*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// changegstatus is called when the non-lock status of a g changes.
`},
	{"runtime/rand.go", "func maps_rand() uint64 {\n", "func maps_rand() uint64 {\n\tif bubble := getg().bubble; bubble != nil {\n\t\treturn bubble.draw(0)\n\t}\n"},
	{"runtime/rand.go", "func rand32() uint32 {\n", "func rand32() uint32 {\n\tif bubble := getg().bubble; bubble != nil {\n\t\treturn uint32(bubble.draw(0))\n\t}\n"},
	{"runtime/rand.go", "\tmp := getg().m\n\tc := &mp.chacha8\n", "\tif bubble := getg().bubble; bubble != nil {\n\t\treturn bubble.draw(1)\n\t}\n\tmp := getg().m\n\tc := &mp.chacha8\n"},
	{"runtime/select.go", "\t\tj := cheaprandn(uint32(norder + 1))\n",
		"\t\tj := cheaprandn(uint32(norder + 1))\n\t\tif gp.bubble != nil {\n\t\t\tj = uint32(gp.bubble.draw(2) % uint64(norder+1))\n\t\t}\n"},
	// The timers of a select count in the order of its cases, not in that of the places of their channels.
	{"runtime/select.go", "\t\tif c.timer != nil {\n\t\t\tblockTimerChan(c)\n\t\t}\n\t}\n\n\t// wait for", `	}
	for _, casei := range pollorder {
		if c := scases[casei].c; c.timer != nil {
			blockTimerChan(c)
		}
	}

	// wait for`},
	{"runtime/time.go", "\t\t\tt.rand = cheaprand()\n", "\t\t\tt.rand = uint32(getg().bubble.draw(3))\n"},
	// Keys of hashes and the places of the heap are the same in each process.
	{"runtime/rand.go", "\tglobalRand.state.Init(*seed)\n", "\t*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)\n"},
	{"internal/sync/hashtriemap.go", "\tht.seed = uintptr(runtime_rand())\n", "\tht.seed = 1\n"},
	// Goroutines outside of the bubble, which keep the machine's time, take the turn of nobody in it.
	{"runtime/proc.go", "\tif randomizeScheduler && next && randn(2) == 0 {\n", "\tif gp.bubble == nil {\n"},
	// The queue that all processors share is looked at each 61st time: it is counted from the start of the bubble, and in it.
	{"runtime/proc.go", "\tif !inheritTime {\n\t\tmp.p.ptr().schedtick++\n", "\tif !inheritTime && gp.bubble != nil {\n\t\tmp.p.ptr().schedtick++\n"},
	{"runtime/synctest.go", "\t\trunqput(pp, bubble.main, true)\n", "\t\tpp.schedtick = 0\n\t\tpp.sysmontick.schedwhen = nanotime()\n\t\trunqput(pp, bubble.main, true)\n"},
	// Nobody is taken from the processor for some time of the machine, also not in a system call, and no lock is handed over after it.
	{"runtime/proc.go", "const forcePreemptNS = 10 * 1000 * 1000 // 10ms\n", "const forcePreemptNS = 60 * 1000 * 1000 * 1000\n"},
	{"runtime/proc.go", "\t\t} else if pd.schedwhen+forcePreemptNS <= now {\n", "\t\t} else if pd.schedwhen != 0 && pd.schedwhen+forcePreemptNS <= now {\n"},
	{"runtime/proc.go", "\t\tif runqempty(pp) && sched.nmspinning.Load()+sched.npidle.Load() > 0 && pd.syscallwhen+10*1000*1000 > now {\n",
		"\t\tif pd.syscallwhen+forcePreemptNS > now {\n"},
	{"runtime/proc.go", "\t\tif scavenger.sysmonWake.Load() != 0 {\n", "\t\tif false {\n"},
	{"internal/sync/mutex.go", "\tstarvationThresholdNs = 1e6\n", "\tstarvationThresholdNs = 60e9\n"},
	// The children of a context end in the order in which they came, not in that of their addresses, which more than eight in a map have.
	{"context/context.go", "\tchildren map[canceler]struct{} //", "\tcame     int\n\tchildren map[canceler]int //"},
	{"context/context.go", "make(map[canceler]struct{})", "make(map[canceler]int)"},
	{"context/context.go", "\t\t\tp.children[child] = struct{}{}\n", "\t\t\tp.came++\n\t\t\tp.children[child] = p.came\n"},
	{"context/context.go", "\tfor child := range c.children {\n", `	ordered := make([]canceler, 0, len(c.children))
	for child := range c.children {
		i := len(ordered)
		for ; i > 0 && c.children[ordered[i-1]] > c.children[child]; i-- {
		}
		ordered = append(ordered, nil)
		copy(ordered[i+1:], ordered[i:])
		ordered[i] = child
	}
	for _, child := range ordered {
`},
}

// exactly makes the changes that have a life be the same each time.
func exactly(texts map[string]string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	for _, c := range exact {
		if err := c.in(strings.TrimSpace(string(root))+"/src", texts); err != nil {
			return fmt.Errorf("the runtime of another Go: %w; see what it draws at random now", err)
		}
	}
	return nil
}
