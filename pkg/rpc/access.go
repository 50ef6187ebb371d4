package rpc

import "towline.dev/towline/pkg/fleet"

// who says which callers a method is for.
type who int

const (
	nobody who = iota
	anyone     // no identity needed; rate-limited by the service
	agents
	hubs    // of the same store
	viewers // every user
	admins
)

// rule is the row of a method.
type rule struct {
	who who
	// write is recorded: who, method, subject, why.
	write bool
}

// rules says who may call what. A method without a row is refused.
var rules = table(map[string]map[string]rule{
	"towline.v1.ModuleService": {
		"PutModule":          {admins, true},
		"DiffModule":         {admins, true},
		"RenderModule":       {admins, true},
		"ResyncModule":       {admins, true},
		"GetModule":          {viewers, false},
		"ListModules":        {viewers, false},
		"WatchModules":       {viewers, false},
		"DeleteModule":       {admins, true},
		"GetRevision":        {viewers, false},
		"ListRevisions":      {viewers, false},
		"GetRevisionObjects": {viewers, false},
		"ListHolds":          {viewers, false},
		"ConfirmHold":        {admins, true},
		"PutHold":            {admins, true},
	},
	"towline.v1.StoreService": {
		"BackupStore":   {admins, true},
		"GetRestore":    {viewers, false},
		"AcceptRestore": {admins, true},
		"ResumeRestore": {admins, true},
	},
	"towline.v1.AuditService": {
		"ListAuditEntries": {admins, false},
	},
	"towline.v1.ArtifactService": {
		"KeepArtifact":   {admins, true},
		"UploadArtifact": {admins, true},
	},
	"towline.v1.ClusterService": {
		"JoinCluster":   {admins, true},
		"PutCluster":    {admins, true},
		"GetCluster":    {viewers, false},
		"ListClusters":  {viewers, false},
		"WatchClusters": {viewers, false},
		"RemoveCluster": {admins, true},
		"RevokeCluster": {admins, true},
		"LockCluster":   {admins, true},
		"UnlockCluster": {admins, true},
	},
	"towline.v1.RolloutService": {
		"GetRollout":      {viewers, false},
		"ListRollouts":    {viewers, false},
		"WatchRollout":    {viewers, false},
		"PauseRollout":    {admins, true},
		"ResumeRollout":   {admins, true},
		"ApproveGate":     {admins, true},
		"RejectGate":      {admins, true},
		"AbortRollout":    {admins, true},
		"RetryRollout":    {admins, true},
		"SkipClusters":    {admins, true},
		"PinClusters":     {admins, true},
		"UnpinClusters":   {admins, true},
		"PromoteStage":    {admins, true},
		"OverrideGate":    {admins, true},
		"RollBackRollout": {admins, true},
		"ExplainRollout":  {viewers, false},
	},
	"towline.v1.AssignmentService": {
		"ListAssignments":   {viewers, false},
		"PutAssignments":    {admins, true},
		"DeleteAssignments": {admins, true},
	},
	"towline.v1.TrackerService": {
		"ListTrackers":  {viewers, false},
		"GetTracker":    {viewers, false},
		"DeleteTracker": {admins, true},
		"ListObjects":   {viewers, false},
		"GetLiveObject": {viewers, false},
		"ExplainObject": {viewers, false},
		"WatchObjects":  {viewers, false},
		"ListEvents":    {viewers, false},
		"GetLogs":       {admins, true},
	},
	"towline.v1.IdentityService": {
		"CreateUser":        {admins, true},
		"ListUsers":         {admins, false},
		"DeleteUser":        {admins, true},
		"ListTokens":        {admins, false},
		"DeleteToken":       {admins, true},
		"ListCertificates":  {admins, false},
		"RevokeCertificate": {admins, true},
		"ListAuthorities":   {admins, false},
		"PutProject":        {admins, true},
		"ListProjects":      {viewers, false},
		"DeleteProject":     {admins, true},
		"GetServerInfo":     {viewers, false},
	},
	"towline.v1.SecretService": {
		"SetSecret":    {admins, true},
		"GetSecret":    {viewers, false},
		"ListSecrets":  {viewers, false},
		"DeleteSecret": {admins, true},
	},
	"towline.v1.CatalogService": {
		"PutCatalog":    {admins, true},
		"GetCatalog":    {viewers, false},
		"ListCatalogs":  {viewers, false},
		"DeleteCatalog": {admins, true},
		"ResyncCatalog": {admins, true},
	},
	"towline.agent.v1.AgentService": {
		"Connect":    {agents, false},
		"GetObjects": {agents, false},
	},
	"towline.agent.v1.EnrollmentService": {
		"Enroll":  {anyone, false},
		"Renew":   {agents, false},
		"Recover": {anyone, false},
	},
	"towline.hub.v1.RelayService": {
		"Ask":           {hubs, false},
		"Gather":        {hubs, false},
		"Resync":        {hubs, false},
		"Call":          {hubs, false},
		"ResyncCatalog": {hubs, false},
		"CallCatalog":   {hubs, false},
	},
	"grpc.health.v1.Health": {
		"Check": {anyone, false},
		"List":  {viewers, false},
		"Watch": {viewers, false},
	},
	"grpc.reflection.v1.ServerReflection":      {"ServerReflectionInfo": {viewers, false}},
	"grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": {viewers, false}},
})

func table(services map[string]map[string]rule) map[string]rule {
	out := map[string]rule{}
	for service, methods := range services {
		for method, r := range methods {
			out["/"+service+"/"+method] = r
		}
	}
	return out
}

// Covered reports whether the table has a row for the full method name.
func Covered(method string) bool {
	_, ok := rules[method]
	return ok
}

// Allow says why the caller may not call the method; known is false for one who proved no identity.
func Allow(method string, c Caller, known bool) error {
	r := rules[method]
	if r.who == anyone {
		return nil
	}
	if !known {
		return fleet.Errorf(fleet.ErrUnknownUser, "%s: not authenticated; use a bearer token or a client certificate of this hub", short(method))
	}
	switch {
	case r.who == agents && c.Kind == KindAgent,
		r.who == hubs && c.Kind == KindHub,
		r.who == viewers && c.Kind == KindUser && (c.Role == RoleViewer || c.Role == RoleAdmin),
		r.who == admins && c.Kind == KindUser && c.Role == RoleAdmin:
		return nil
	case r.who == admins && c.Kind == KindUser:
		return fleet.Errorf(fleet.ErrDenied, "user %s: has role %s; %s needs admin", c, c.Role, short(method))
	}
	return fleet.Errorf(fleet.ErrDenied, "%s: may not call %s", c, short(method))
}

// short is the method's own name.
func short(method string) string {
	for i := len(method) - 1; i >= 0; i-- {
		if method[i] == '/' {
			return method[i+1:]
		}
	}
	return method
}

// Records reports whether calls of the method are writes, which are recorded.
func Records(method string) bool { return rules[method].write }
