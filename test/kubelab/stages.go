package main

import (
	"strings"

	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
)

// neverReadyKey and readyAfterKey are what a pod carries to be left unready,
// or to be made ready late.
const (
	neverReadyKey = "kubelab.towline.dev/never-ready"
	readyAfterKey = "kubelab.towline.dev/ready-after"
)

// neverReady selects the pods that never become ready: the query yields
// "true" for them.
const neverReady = `[(.metadata.annotations // {})["` + neverReadyKey + `"], (.metadata.labels // {})["` + neverReadyKey + `"],` +
	` ((.spec.containers // []) + (.spec.initContainers // []) | .[].image | strings | contains("never-ready") | tostring)]` +
	` | any(. == "true") | tostring`

// podStuck leaves a pod pending with its containers waiting for their images,
// as a kubelet does which cannot pull them.
const podStuck = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: pod-stuck
spec:
  resourceRef:
    apiGroup: v1
    kind: Pod
  selector:
    matchExpressions:
    - key: '.metadata.deletionTimestamp'
      operator: 'DoesNotExist'
    - key: '.status.phase'
      operator: 'In'
      values:
      - 'Pending'
    - key: '.status.conditions.[] | select( .type == "Ready" ) | .status'
      operator: 'DoesNotExist'
    - key: '` + neverReady + `'
      operator: 'In'
      values:
      - 'true'
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - lastTransitionTime: {{ $now | Quote }}
        status: "True"
        type: Initialized
      - lastTransitionTime: {{ $now | Quote }}
        message: 'containers with unready status: [{{ range $index, $item := .spec.containers }}{{ if $index }} {{ end }}{{ $item.name }}{{ end }}]'
        reason: ContainersNotReady
        status: "False"
        type: Ready
      - lastTransitionTime: {{ $now | Quote }}
        message: 'containers with unready status: [{{ range $index, $item := .spec.containers }}{{ if $index }} {{ end }}{{ $item.name }}{{ end }}]'
        reason: ContainersNotReady
        status: "False"
        type: ContainersReady
      containerStatuses:
      {{ range .spec.containers }}
      - image: {{ .image | Quote }}
        name: {{ .name | Quote }}
        ready: false
        started: false
        restartCount: 0
        state:
          waiting:
            reason: ImagePullBackOff
            message: {{ printf "Back-off pulling image %q" .image | Quote }}
      {{ end }}
      phase: Pending
      startTime: {{ $now | Quote }}
`

// kwokConfig is the configuration file of KWOK: its default stages, with the
// pods selected by neverReady kept from becoming ready.
func kwokConfig() string {
	ready := strings.Replace(podfast.DefaultPodReady, "    matchExpressions:\n", `    matchExpressions:
    - key: '`+neverReady+`'
      operator: 'NotIn'
      values:
      - 'true'
`, 1)
	ready = strings.Replace(ready, "  next:\n", `  delay:
    durationMilliseconds: 0
    durationFrom:
      expressionFrom: '.metadata.annotations["`+readyAfterKey+`"]'
  next:
`, 1)
	return strings.Join([]string{
		nodefast.DefaultNodeInit,
		nodeheartbeat.DefaultNodeHeartbeatWithLease,
		ready,
		podStuck,
		podfast.DefaultPodComplete,
		podfast.DefaultPodDelete,
	}, "\n---\n")
}
