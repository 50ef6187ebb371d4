package rollout

// Outlook is where a rollout leads the clusters of its module, as far as its head tells. It is for those who ask about one cluster
// of many rollouts, whose members they do not read; Decide gives no cluster anything else. It is comparable.
type Outlook struct {
	// Places is the revision whose placement says where the module is to be; 0: the rollout brings it nowhere, and takes it from
	// nobody.
	Places int64
	// Leads is the revision that clusters go to, or have come to; 0: each keeps what it has.
	Leads int64
	// Back says that Leads is an older revision, to which the rollout goes back, or went.
	Back bool
	// Kept is the newer revision of those clusters which have not gone back with the others, and will not; 0: all may still go.
	Kept int64
	// Joiners is the older revision that clusters get which come to the module now, those of a stage that has begun aside;
	// 0: none.
	Joiners int64
}

// OutlookOf tells it from what is stored of a rollout: its revision, the one that stood before, what its strategy says of late
// joiners, its state, and the encoded head, if it has one yet.
func OutlookOf(revision, from int64, lateJoiners string, state RunState, head []byte) Outlook {
	back := outlineOf(head).Back
	switch {
	case state == Failed, state == Superseded:
		return Outlook{}
	case state == Aborted && back != nil:
		return Outlook{Places: revision, Joiners: back.To}
	case state == Aborted:
		return Outlook{Places: revision, Joiners: from}
	case state == RolledBack && back != nil:
		return Outlook{Places: back.To, Leads: back.To, Back: true, Kept: revision}
	case back != nil:
		return Outlook{Places: back.To, Leads: back.To, Back: true}
	case !state.Ended() && (lateJoiners == "" || lateJoiners == LateFollow):
		return Outlook{Places: revision, Leads: revision, Joiners: from}
	}
	return Outlook{Places: revision, Leads: revision}
}

// Revisions are those by which clusters may still be placed, or which they may still be given.
func (o Outlook) Revisions() []int64 {
	var out []int64
	for _, n := range []int64{o.Places, o.Leads, o.Kept, o.Joiners} {
		if n != 0 {
			out = append(out, n)
		}
	}
	return out
}
