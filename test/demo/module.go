package main

import (
	"maps"
	"slices"
	"strings"
)

// objectsOfShop is how many objects the module has.
const objectsOfShop = 6

// module is the shop in one version.
func module(version, greeting string) string {
	files := map[string]string{
		"namespace.yaml": `apiVersion: v1
kind: Namespace
metadata: {name: shop}
`,
		"crd.yaml": `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: offers.shop.example.com}
spec:
  group: shop.example.com
  names: {plural: offers, singular: offer, kind: Offer, listKind: OfferList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {price: {type: string}, article: {type: string}}}
`,
		"offer.yaml": `apiVersion: shop.example.com/v1
kind: Offer
metadata: {name: tea}
spec: {article: tea, price: "4.20"}
`,
		"web.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.com/shop:` + version + `
        ports: [{name: http, containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`,
		"greeting.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: greeting}
data: {text: ` + greeting + `}
`,
	}
	var out strings.Builder
	out.WriteString(`apiVersion: towline.dev/v1
kind: Module
metadata: {name: shop}
spec:
  namespace: shop
  placement:
    selector: {matchLabels: {env: prod}}
  source:
    inline:
      files:
`)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		out.WriteString("        " + name + ": |\n")
		for line := range strings.Lines(files[name]) {
			out.WriteString("          " + line)
		}
	}
	return out.String()
}
