package e2e

var coreParts = []part{
	{2, `{apiVersion: v1, kind: Namespace, metadata: {name: fleet-%[1]d, labels: {part: fleet}}}
`},
	{30, `apiVersion: v1
kind: ConfigMap
metadata: {name: settings-%[1]d, labels: {app: fleet}}
data: {number: "%[1]d", text: "line one\nline two\n"}
`},
	{10, `apiVersion: v1
kind: Secret
metadata: {name: secret-%[1]d}
type: Opaque
data: {key: c2VjcmV0}
`},
	{2, `apiVersion: v1
kind: Secret
metadata: {name: words-%[1]d}
stringData: {word: "plain-%[1]d"}
`},
	{10, `apiVersion: v1
kind: Service
metadata: {name: service-%[1]d}
spec:
  selector: {app: app-%[1]d}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: metrics, port: 9090, protocol: TCP}
`},
	{8, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: account-%[1]d}}
`},
	{2, `apiVersion: v1
kind: PersistentVolume
metadata: {name: fleet-volume-%[1]d}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: fleet-class-1
  hostPath: {path: /tmp/fleet}
`},
	{2, `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-%[1]d}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: fleet-class-1
  volumeName: fleet-volume-%[1]d
  resources: {requests: {storage: 1Gi}}
`},
	{1, `apiVersion: v1
kind: ResourceQuota
metadata: {name: quota-%[1]d, namespace: fleet-2}
spec: {hard: {pods: "10"}}
`},
	{1, `apiVersion: v1
kind: LimitRange
metadata: {name: limits-%[1]d, namespace: fleet-2}
spec:
  limits:
  - {type: Container, max: {memory: 1Gi}}
`},
	{2, `apiVersion: v1
kind: PodTemplate
metadata: {name: template-%[1]d}
template:
  metadata: {labels: {app: template}}
  spec: {containers: [{name: main, image: "example.com/template:%[1]d"}]}
`},
	{1, `apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]d, labels: {app: pod}}
spec:
  containers: [{name: main, image: "example.com/pod:1"}]
`},
	{2, `apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: lease-%[1]d}
spec: {holderIdentity: nobody, leaseDurationSeconds: 3600}
`},
	{2, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slice-%[1]d, labels: {kubernetes.io/service-name: outside, endpointslice.kubernetes.io/managed-by: fleet}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.%[1]d]}]
ports: [{name: http, port: 80, protocol: TCP}]
`},
}

var workloadParts = []part{
	{6, `apiVersion: apps/v1
kind: Deployment
metadata: {name: app-%[1]d}
spec:
  replicas: 2
  selector: {matchLabels: {app: app-%[1]d}}
  template:
    metadata: {labels: {app: app-%[1]d}}
    spec:
      containers:
      - name: main
        image: example.com/app:1
        env: [{name: NUMBER, value: "%[1]d"}]
        ports: [{containerPort: 8080}]
        resources: {requests: {cpu: 10m, memory: 16Mi}}
`},
	{2, `apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled-%[1]d}
spec:
  selector: {matchLabels: {app: scaled-%[1]d}}
  template:
    metadata: {labels: {app: scaled-%[1]d}}
    spec: {containers: [{name: main, image: example.com/scaled:1}]}
`},
	{2, `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled-%[1]d}
spec:
  minReplicas: 1
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled-%[1]d}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
`},
	{2, `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: state-%[1]d}
spec:
  serviceName: service-1
  selector: {matchLabels: {app: state-%[1]d}}
  template:
    metadata: {labels: {app: state-%[1]d}}
    spec: {containers: [{name: main, image: example.com/state:1}]}
`},
	{1, `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: daemon-%[1]d}
spec:
  selector: {matchLabels: {app: daemon}}
  template:
    metadata: {labels: {app: daemon}}
    spec: {containers: [{name: main, image: example.com/daemon:1}]}
`},
	{1, `apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: set-%[1]d}
spec:
  replicas: 1
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec: {containers: [{name: main, image: example.com/set:1}]}
`},
	{2, `apiVersion: batch/v1
kind: Job
metadata: {name: job-%[1]d}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: example.com/job:1}]
`},
	{3, `apiVersion: batch/v1
kind: CronJob
metadata: {name: cron-%[1]d}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: example.com/cron:1}]
`},
	{3, `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: budget-%[1]d}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: app-%[1]d}}}
`},
	{4, `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: policy-%[1]d}
spec:
  podSelector: {matchLabels: {app: app-%[1]d}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {}}], ports: [{port: 8080, protocol: TCP}]}]
`},
	{3, `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: ingress-%[1]d}
spec:
  ingressClassName: fleet-ingress-1
  rules:
  - host: app-%[1]d.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: service-%[1]d, port: {name: http}}}}]}
`},
	{5, `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: role-%[1]d}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
`},
	{5, `apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: binding-%[1]d}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: role-%[1]d}
subjects: [{kind: ServiceAccount, name: account-%[1]d, namespace: fleet-1}]
`},
	{6, `apiVersion: fleet.example.com/v1
kind: Widget
metadata: {name: widget-%[1]d}
spec: {size: %[1]d, color: red}
`},
	{4, `apiVersion: fleet.example.com/v1
kind: Gadget
metadata: {name: gadget-%[1]d}
spec: {size: %[1]d, color: green}
`},
	{3, `apiVersion: fleet.example.com/v1
kind: Gear
metadata: {name: gear-%[1]d}
spec: {size: %[1]d, color: blue}
`},
}

var clusterParts = []part{
	{1, crd("widgets", "Widget", "Namespaced")},
	{1, crd("gadgets", "Gadget", "Cluster")},
	{1, crd("gears", "Gear", "Namespaced")},
	{3, `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: fleet-role-%[1]d}
rules: [{apiGroups: [fleet.example.com], resources: [widgets], verbs: ["*"]}]
`},
	{3, `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fleet-binding-%[1]d}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fleet-role-%[1]d}
subjects: [{kind: ServiceAccount, name: account-%[1]d, namespace: fleet-1}]
`},
	{1, `apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: fleet-ingress-%[1]d}
spec: {controller: example.com/none}
`},
	{2, `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fleet-class-%[1]d}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: Immediate
`},
	{1, `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: fleet-%[1]d.example.com}
spec: {attachRequired: false}
`},
	{2, `apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: fleet-priority-%[1]d}
value: %[1]d
description: of the fleet
`},
	{1, `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: fleet-runtime-%[1]d}
handler: none
`},
	{1, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: fleet-policy-%[1]d}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules: [{apiGroups: [none.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]
  validations: [{expression: "true"}]
`},
	{1, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: fleet-policy-binding-%[1]d}
spec: {policyName: fleet-policy-1, validationActions: [Audit]}
`},
	{1, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: fleet-validating-%[1]d}
webhooks:
- name: none.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {url: "https://127.0.0.1:1/none"}
  rules: [{apiGroups: [none.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]
`},
	{1, `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: fleet-mutating-%[1]d}
webhooks:
- name: none.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {url: "https://127.0.0.1:1/none"}
  rules: [{apiGroups: [none.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]
`},
	{1, `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: fleet-level-%[1]d}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}
`},
	{1, `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: fleet-flow-%[1]d}
spec:
  priorityLevelConfiguration: {name: fleet-level-1}
  matchingPrecedence: 9000
  rules:
  - subjects: [{kind: User, user: {name: nobody-at-all}}]
    resourceRules: [{apiGroups: [none.example.com], resources: [nothings], verbs: [get], clusterScope: true}]
`},
}

func crd(plural, kind, scope string) string {
	return `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ` + plural + `.fleet.example.com}
spec:
  group: fleet.example.com
  names: {plural: ` + plural + `, kind: ` + kind + `, listKind: ` + kind + `List}
  scope: ` + scope + `
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, maximum: %[1]d00000}
              color: {type: string, default: none}
`
}
