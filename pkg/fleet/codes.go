package fleet

// Codes for what a person should know. A client makes the sentences.
const (
	// What a person must look at in a cluster.
	AttentionStrays       = "StraySyncs"
	AttentionExpected     = "ExpectedBack"
	AttentionRegressed    = "Regressed"
	AttentionOtherCluster = "OtherCluster"
	AttentionCloned       = "Cloned"
	AttentionCopied       = "CopiedIdentity"
	AttentionUnknownCert  = "UnknownCertificate"
	AttentionFormer       = "FormerIdentity"
	AttentionUnregistered = "Unregistered"
	AttentionDamaged      = "DamagedRecord"
	AttentionRefused      = "Refused"

	// Why a hold waits for a person.
	HoldLeaves = "LeavesClusters"
	HoldDrops  = "DropsMostObjects"
	HoldPrunes = "PrunesMostModules"
	// HoldGoesBack: the source of a catalog has older files than before, and some of its modules are not in these.
	HoldGoesBack = "SourceGoesBack"
	HoldDamaged  = "DamagedRecord"
	// HoldUnreadEnd: the end that an annotation gives a hold is no time, so that it has none.
	HoldUnreadEnd = "UnreadEnd"

	// DidRemoveModule is the method in the audit of what agents left of a module that was deleted.
	DidRemoveModule = "RemoveModule"
	// DidRecycleTracker is the method in the audit of what an order to delete a tracker left.
	DidRecycleTracker = "RecycleTracker"

	// What a person should know after a put.
	WarnDamaged       = "TakesPlaceOfDamaged"
	WarnNoSuchCluster = "NoSuchCluster"
	WarnNoCluster     = "NoCluster"
	WarnNoSecret      = "NoSuchSecret"
	WarnNoHooks       = "NoHooks"
	WarnNoWebhookKey  = "NoWebhookKey"
	WarnNoStages      = "NoStages"
	WarnEmptyStage    = "EmptyStage"
	WarnEmptyOverride = "EmptyOverride"
	WarnUnmatched     = "UnmatchedClusters"
	WarnNoDependency  = "NoSuchDependency"
	WarnEmptySet      = "NoClusterOfDependency"
	WarnDeletedFirst  = "DeletedFirst"
	WarnStaysBack     = "StaysRolledBack"
	WarnOfCatalog     = "OfCatalog"
	WarnOfSet         = "OfSet"
	WarnNearlyFull    = "StoreNearlyFull"
	WarnFull          = "StoreFull"
	WarnRestored      = "HubRestored"
	WarnHubVersions   = "HubVersionsDiffer"

	// Why the values of a secret cannot be read.
	SecretNoKey    = "NoKey"
	SecretOtherKey = "OtherKey"
	SecretAltered  = "Altered"
	SecretDamaged  = "DamagedRecord"

	// What stands for the reason of a module's or a rollout's state where that is none of the rollout's own.
	ReasonDamagedModule  = "DamagedModule"
	ReasonDamagedRollout = "DamagedRollout"
	ReasonDeleting       = "Deleting"

	// Why a module is not Ready, beside the reasons of its rollout.
	ReadyDegraded = "Degraded"
	ReadyAway     = "Away"
	ReadyNowhere  = "Nowhere"
	// ReadyRegressed: agents have seen a newer store of the hub, so that nobody knows what their clusters have.
	ReadyRegressed = "Regressed"

	// ConditionSpecValid is the condition of a module whose stored spec has what this hub does not take any more, and ReasonInvalidSpec its reason.
	ConditionSpecValid = "SpecValid"
	ReasonInvalidSpec  = "Invalid"

	// Why a module stands in a cluster as it does, where that is not for its agent to say.
	TrackerNotAssigned   = "NotAssigned"
	TrackerCannotAssign  = "CannotAssign"
	TrackerRefused       = "Refused"
	TrackerTooOld        = "AgentTooOld"
	TrackerSending       = "Sending"
	TrackerRemoving      = "Removing"
	TrackerReleasing     = "Releasing" // the module goes, and its objects stay without our marks
	TrackerRemovingFirst = "RemovingFirst"
	TrackerLeaving       = "Leaving"     // its cluster leaves the fleet, and the agent is at it
	TrackerPlacedAgain   = "PlacedAgain" // its removal was stopped, and stands still since its placement has it there again
	TrackerDisconnected  = "Disconnected"
	TrackerNotHeard      = "NotHeard"
	TrackerRegressed     = "Regressed"
	TrackerNotSeen       = "ClusterNotSeen"

	// What becomes of an object that drifts: it is corrected, or its policy leaves it so, or two write against each other.
	ObjectDrifted    = "Drifted"
	ObjectLeftSo     = "LeftByPolicy"
	ObjectTwoWriters = "TwoWriters"
	// ObjectShared: another module has the object and writes it, and this one shares it.
	ObjectShared = "Shared"

	// Why reports of an agent were not kept whole.
	ReportsNotDesired = "NotDesired"
	ReportsTooLarge   = "TooLarge"
)
