package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"towline.dev/towline/pkg/render"
)

const (
	objects    = 51
	dashboards = 7
	// dashboardBytes is what makes the module 153 KB.
	dashboardBytes = 15_850
)

// files are 11 deployments with what goes with each, and dashboards: most of the bytes are in few objects, as in what people install
// to watch their clusters. One field of one deployment says version.
func files(version int) map[string]string {
	random := rand.New(rand.NewPCG(31, 7)) // the same each time
	out := map[string]string{}
	for i := range 11 {
		v := 1
		if i == 5 {
			v = version
		}
		out[fmt.Sprintf("app-%02d.yaml", i)] = app(i, v)
	}
	for i := range dashboards {
		out[fmt.Sprintf("dashboard-%d.yaml", i)] = dashboard(i, random)
	}
	return out
}

func app(i, version int) string {
	name := fmt.Sprintf("service-%02d", i)
	return strings.NewReplacer("NAME", name, "VERSION", fmt.Sprintf("v1.%d.%d", 10+i, version), "PORT", fmt.Sprint(8000+i)).Replace(`apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: shop, labels: {app.kubernetes.io/name: NAME, app.kubernetes.io/part-of: shop}}
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: shop, labels: {app.kubernetes.io/name: NAME, app.kubernetes.io/part-of: shop}}
spec: {ports: [{name: http, port: 80, targetPort: http}], selector: {app.kubernetes.io/name: NAME}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: NAME, namespace: shop, labels: {app.kubernetes.io/name: NAME, app.kubernetes.io/part-of: shop}}
data: {config.yaml: "listen: :PORT\nlog: {level: info, format: json}\nupstream: http://NAME-db.shop.svc:5432\ntimeout: 30s\n"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: shop, labels: {app.kubernetes.io/name: NAME, app.kubernetes.io/part-of: shop}}
spec:
  replicas: 2
  selector: {matchLabels: {app.kubernetes.io/name: NAME}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "PORT"}
      labels: {app.kubernetes.io/name: NAME, app.kubernetes.io/part-of: shop}
    spec:
      serviceAccountName: NAME
      securityContext: {runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: server
        image: registry.example.com/shop/NAME:VERSION
        args: [--config=/etc/NAME/config.yaml, --listen=:PORT, --log-level=info]
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        ports: [{name: http, containerPort: PORT, protocol: TCP}]
        readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5, failureThreshold: 3}
        livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 10, initialDelaySeconds: 15}
        resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 256Mi}}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
        volumeMounts: [{name: config, mountPath: /etc/NAME, readOnly: true}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: config, configMap: {name: NAME}}, {name: tmp, emptyDir: {}}]
`)
}

func dashboard(i int, random *rand.Rand) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dashboard-%d, namespace: shop, labels: {grafana_dashboard: \"1\"}}\ndata:\n  dashboard.json: |\n", i)
	for panel := 0; b.Len() < dashboardBytes; panel++ {
		fmt.Fprintf(&b, "    {\"id\": %d, \"title\": \"rate of %x\", \"type\": \"graph\", \"expr\": \"sum(rate(http_requests_total{job=\\\"service-%02d\\\",code=~\\\"%d..\\\"}[5m])) by (instance)\", \"legend\": \"{{instance}}\", \"y\": %d},\n",
			panel, random.Uint32(), random.IntN(11), 1+random.IntN(5), random.IntN(100))
	}
	return b.String()
}

// fullBytes are those of all objects as they are stored and digested.
func fullBytes(version int) (n int64, err error) {
	in := map[string][]byte{}
	for name, text := range files(version) {
		in[name] = []byte(text)
	}
	all, err := render.Plain(in, render.Options{})
	if err != nil {
		return 0, err
	}
	if len(all) != objects {
		return 0, fmt.Errorf("the module has %d objects, not %d", len(all), objects)
	}
	for _, o := range all {
		n += int64(len(o.Raw))
	}
	return n, nil
}
