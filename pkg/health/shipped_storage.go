package health

import (
	"maps"
	"slices"
	"strings"
)

// The judgements of single kinds of storage and of what keeps data in it: Longhorn, VolSync, Trident, Koperator, Redpanda. Each reports whether it decides; otherwise the rest of its rule does.

func longhornVolumeHealth(o *object) (Result, bool) {
	state, robustness := text(o.status, "state"), text(o.status, "robustness")
	if robustness == "faulted" {
		return degraded("Faulted", "no replica has the data"), true
	}
	if r, ok := longhornVolumeLacks(o); ok {
		return r, true
	}
	switch {
	case state == "detached", state == "attached" && robustness == "healthy":
		return healthy(), true
	case state == "attached" && robustness == "degraded":
		return progressing("Rebuilding", "replicas are rebuilt"), true
	}
	return progressing(nonEmpty(camelKey(nonEmpty(state, "noState"))), "the volume is "+nonEmpty(state, "not made yet")), true
}

// longhornVolumeLacks is what a volume has not got yet, or cannot get, whether it is attached or not. One that stands by is restored
// again and again.
func longhornVolumeLacks(o *object) (Result, bool) {
	var s signs
	scheduled, restore, image := o.condition("Scheduled"), o.condition("Restore"), o.condition("WaitForBackingImage")
	if scheduled.is("False") {
		s.add(degraded(nonEmpty(scheduled.reason, "NotScheduled"), nonEmpty(scheduled.message, "there is no room for a replica")))
	}
	switch {
	case restore.is("False") && reasonClass(restore.reason, "") == bad:
		s.add(degraded(restore.reason, nonEmpty(restore.message, "the backup was not restored")))
	case isTrue(o.status, "isStandby"):
	case restore.is("True"), isTrue(o.status, "restoreRequired"):
		s.add(progressing(nonEmpty(restore.reason, "Restoring"), nonEmpty(restore.message, "the backup is restored")))
	}
	switch {
	case image.is("True") && reasonClass(image.reason, "") == bad:
		s.add(degraded(image.reason, nonEmpty(image.message, "there is no backing image")))
	case image.is("True"):
		s.add(progressing(image.reason, nonEmpty(image.message, "it waits for its backing image")))
	}
	switch clone := text(mapOf(o.status, "cloneStatus"), "state"); clone {
	case "", "completed":
	case "failed":
		s.add(degraded("CloneFailed", "the other volume could not be cloned"))
	default:
		s.add(progressing("Cloning", "the other volume is cloned"))
	}
	if isTrue(o.status, "expansionRequired") {
		s.add(progressing("Expanding", "it does not have its new size yet"))
	}
	if want := text(o.spec, "image"); upgrades(text(o.status, "currentImage"), want) {
		s.add(progressing("Upgrading", "its engine is not "+want+" yet"))
	}
	return s.verdict()
}

func longhornSnapshotHealth(o *object) (Result, bool) {
	switch message := text(o.status, "error"); {
	case o.empty():
		return Result{}, false
	case isTrue(o.status, "readyToUse"):
		return healthy(), true
	case message != "":
		return degraded("Error", message), true
	}
	return progressing("NotReadyToUse", "the snapshot is not ready to use yet"), true
}

// backupTargetHealth: without an address no backups are wanted, which is noted as if the target were unavailable.
func backupTargetHealth(o *object) (Result, bool) {
	c := o.condition("Unavailable")
	switch {
	case o.empty():
		return Result{}, false
	case isTrue(o.status, "available"), text(o.spec, "backupTargetURL") == "":
		return healthy(), true
	case c.is("True"):
		return c.isBad(), true
	}
	return progressing("NotAvailable", "nobody has looked at the target yet"), true
}

func engineImageTooOld(o *object) (Result, bool) {
	return degraded("Incompatible", "the engine does not fit the manager"), isTrue(o.status, "incompatible")
}

// backingImageHealth counts the copies that are ready.
func backingImageHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	files := mapOf(o.status, "diskFileStatusMap")
	ready, failed := int64(0), ""
	for _, disk := range slices.Sorted(maps.Keys(files)) {
		file := mapOf(files, disk)
		switch state := text(file, "state"); state {
		case "ready":
			ready++
		case "failed", "failed-and-cleanup":
			failed = nonEmpty(failed, disk+": "+nonEmpty(text(file, "message"), state))
		}
	}
	switch want := max(count(o.spec, "minNumberOfCopies", 1), 1); {
	case ready >= want:
		return healthy(), true
	case failed != "":
		return degraded("Failed", failed), true
	default:
		return progressing("NotReady", of(ready, want, "copies are ready")), true
	}
}

// volsyncHealth: what was synchronized once is as it should be while it is again, which without a trigger it always is. What a person
// orders has to be done.
func volsyncHealth(o *object) (Result, bool) {
	c, ordered := o.condition("Synchronizing"), text(mapOf(o.spec, "trigger"), "manual")
	switch {
	case text(mapOf(o.status, "latestMoverStatus"), "result") == "Failed":
		return degraded("MoverFailed", nonEmpty(text(mapOf(o.status, "latestMoverStatus"), "logs"), "the last mover failed")), true
	case c.is("False") && c.reason == "Error":
		return degraded(c.reason, c.message), true
	case ordered != "" && ordered != text(o.status, "lastManualSync"):
		return progressing(nonEmpty(c.reason, "WaitingForManual"), "the order "+ordered+" is not carried out yet"), !o.empty()
	}
	return healthy(), c.is("True") && text(o.status, "lastSyncTime") != ""
}

// backendUnbound: the last operation may have been fine, and the backend is not, or no more, that of its configuration.
func backendUnbound(o *object) (Result, bool) {
	phase := text(o.status, "phase")
	if phase == "" || phase == "Bound" || text(o.status, "lastOperationStatus") != "Success" {
		return Result{}, false
	}
	if phaseClass(phase) == bad {
		return degraded(phase, nonEmpty(text(o.status, "message"), "the backend is "+phase)), true
	}
	return progressing(phase, nonEmpty(text(o.status, "message"), "the backend is "+phase)), true
}

// brokersHealth: a cluster is called running while some of its brokers do not have their configuration, or their share of the data.
func brokersHealth(o *object) (Result, bool) {
	brokers := mapOf(o.status, "brokersState")
	var s signs
	for _, id := range slices.Sorted(maps.Keys(brokers)) {
		m, _ := brokers[id].(map[string]any)
		if config := text(m, "configurationState"); config != "" && config != "ConfigInSync" {
			s.add(progressing(config, "broker "+id+" is "+config))
		}
		action := mapOf(m, "gracefulActionState")
		switch state := text(action, "cruiseControlState"); {
		case state == "" || strings.HasSuffix(state, "Succeeded"):
		case phaseClass(state) == bad:
			s.add(degraded(state, nonEmpty(text(action, "errorMessage"), "broker "+id+" is "+state)))
		default:
			s.add(progressing(state, "broker "+id+" is "+state))
		}
	}
	r, found := s.verdict()
	return r, found && text(o.status, "state") == "ClusterRunning"
}

// redpandaSettles: what can serve is Ready, whatever goes on. An older version says no more.
func redpandaSettles(o *object) (Result, bool) {
	if o.condition("Quiesced").kind == "" {
		return Result{}, false
	}
	var s signs
	for _, kind := range []string{"Ready", "Healthy", "ResourcesSynced", "ConfigurationApplied", "Quiesced"} {
		if c := o.condition(kind); o.stale(c) {
			s.add(o.old(c.observed))
		} else {
			s.goodCondition(c)
		}
	}
	return s.verdict()
}

// cephMirrorFails: a pool is ready, too, when what mirrors it to another cluster fails.
func cephMirrorFails(o *object) (Result, bool) {
	summary := mapOf(mapOf(o.status, "mirroringStatus"), "summary")
	for _, part := range []string{"health", "daemon_health", "image_health"} {
		if text(summary, part) == "ERROR" {
			return degraded("MirroringError", "status.mirroringStatus.summary."+part+" is ERROR"), text(o.status, "phase") == "Ready"
		}
	}
	return Result{}, false
}
