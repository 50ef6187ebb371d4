// Package sim lives lives of whole fleets from seeds: the real hub over a store in memory, and real agents with mutual TLS and gRPC over
// a simulated network, each with an API server in memory, all in one process in virtual time (testing/synctest). People put, move,
// delete, steer, hold, label, remove and join at random while things go wrong: processes die at a commit or a write, before or after it;
// commits and writes that happen are not answered, or are refused; links are cut, slow, stuck or closed; API servers are down; somebody
// edits objects, deletes them, or has others in their place. A judge looks at every write of every cluster, and at what the hub says after
// every step; now and then everything heals, and must come to be as wanted. The package owns the network, the API server and the judge;
// it must not know the inside of hub or agent.
//
// What the judge finds (the invariants of the project's reliability plan):
//
//	I1   an object is deleted that a module wanted all the time, or that at any time some module wanted, also while it moves between them
//	I2   an agent writes or deletes what is not its hub's
//	I3   an object gets content that was not wanted since all was as wanted last, or older content than it has, without a rollback
//	I4   a put that was acknowledged is not there
//	I5   half an hour after all healed something is not as wanted, or people get no answers for a minute
//	I6   an object gets the content of another module, or goes to a cluster where its module never was wanted
//	I7   an older process of an agent writes after a newer one did
//	I8   a module is ready at a revision in a cluster where an object of it was never written so; or, at rest, it is not healthy everywhere
//	I10  the hub or an agent ends by itself; goroutines that are left when all has ended (a panic, or a deadlock, ends the run)
//	I11  while the hub is away from a fleet that is as wanted, an agent writes anything, also one that starts anew
//
// Not simulated: several hubs at a time, clocks that step (a bubble has one), stores that go back, two agents in a cluster, I9.
//
// Lives that are asked for by number, and those with a planted bug, are wilder than those of a plain go test: two modules list an object
// for some time, clusters keep what they have when they leave, answers to joins are lost, somebody puts an object of their
// own in the place of one that is about to be deleted; and a fleet that is as wanted has an agent that is away, or a module that is
// held while it is deleted.
//
// A seed decides what people do, what goes wrong, and when; virtual time does the rest. With Go's own runtime it does not decide which of two
// goroutines is faster that wake at the same instant, nor the order of maps: no two lives from a seed are the same to the last effect. make sim
// builds with a runtime, an overlay of a few lines that are in test/sim/overlay, which draws from the time of the life and lets no clock of
// the machine decide who runs, and lives each seed in a process of its own, for one that has lived has schemas and the like already. Seeds
// that are lived twice are the same then to the last effect: writes to API servers, commits, and all that is sent, byte for byte (make sim-replay
// sees that, and says else where two lives part; so does make sim SEED=n). Plain go test, and make test, have no such runtime: what they find another life may not, and a failure says what happened.
// With -v, TRACE=1 has a life that found nothing say it, too, and TOWLINE_SIM_LOG=FILE writes what hub and agents log.
package sim
