package canaries

import (
	"fmt"
	"strings"
)

// canary is a value that somebody plants.
type canary struct {
	name string
	// text is put by somebody as text of a module: admins read it back as they put it, and the hub's store has it. Others are sealed, and are
	// nowhere but in the cluster.
	text bool
	// applied is text of a module that goes to clusters, so that agents have it in their state.
	applied bool
}

// canaries are planted each in a way in which people have secrets.
var canaries = []canary{
	// In manifests.
	{"InlineData", true, true}, {"InlineText", true, true}, {"InlineComment", true, false}, {"InlineList", true, true}, {"InlineJSON", true, true}, {"InlineNotes", true, false},
	{"Commented", true, false}, {"Carried", true, true}, {"CarriedText", true, true}, {"InlineCopy", true, true},
	{"Annotated", false, false}, {"Argument", false, false}, {"Several", false, false},
	// In bindings.
	{"Literal", true, true}, {"Default", true, true},
	{"Global", false, false}, {"Scoped", false, false}, {"Rotated", false, false}, {"InCluster", false, false},
	{"Quoted", false, false}, {"Trimmed", false, false}, {"Escaped", false, false}, {"Base64", false, false},
	// In charts and overrides.
	{"ChartValue", true, true}, {"ChartFails", false, false}, {"ChartOverride", true, true}, {"Patch", true, true}, {"PatchFails", false, false},
	// In what fetches sources and asks gates.
	{"Password", false, false}, {"Bearer", false, false}, {"Header", false, false}, {"Webhook", false, false},
	{"URLUser", true, false}, {"URLPassword", true, false}, {"URLQuery", true, false}, {"URLBroken", true, false}, {"GitPassword", true, false}, {"HelmPassword", true, false},
	{"OCIPassword", false, false}, {"CatalogPassword", true, false}, {"GatePath", true, false}, {"GatePassword", true, false}, {"MetricPassword", true, false}, {"GateKey", false, false},
	// In what is refused before it is put.
	{"BadYAML", false, false}, {"BadText", false, false}, {"BadField", false, false}, {"BadType", false, false},
	// In what others say and write.
	{"Invalid", false, false}, {"Denied", false, false}, {"Foreign", false, false}, {"LastApplied", false, false}, {"Told", false, false},
	{"Kapp", false, false}, {"Wrangler", false, false}, {"ForeignCarried", false, false},
}

func names() (out []string) {
	for _, c := range canaries {
		out = append(out, c.name)
	}
	return out
}

// secrets are those of the hub: NAME, its scope, and what it has.
func secrets() []struct {
	name, scope string
	values      map[string]string
} {
	type values = map[string]string
	return []struct {
		name, scope string
		values      map[string]string
	}{
		{"app", "", values{"global": value("Global"), "rotated": value("Rotated"), "annotated": value("Annotated"), "argument": value("Argument"),
			"several": "-----BEGIN\n" + value("Several") + "\nof lines\n-----END\n", "quoted": `a "` + value("Quoted") + `" \ 'b'`, "trimmed": "  " + value("Trimmed") + " \n",
			"escaped": "p@/?&=%" + value("Escaped") + "<é>", "base64": strings.Repeat("x", 7) + value("Base64"), "invalid": value("Invalid"), "denied": value("Denied"), "scoped": "none", "told": value("Told")}},
		{"app", "c1", values{"global": value("Global"), "rotated": value("Rotated"), "annotated": value("Annotated"), "argument": value("Argument"),
			"several": "-----BEGIN\n" + value("Several") + "\nof lines\n-----END\n", "quoted": `a "` + value("Quoted") + `" \ 'b'`, "trimmed": "  " + value("Trimmed") + " \n",
			"escaped": "p@/?&=%" + value("Escaped") + "<é>", "base64": strings.Repeat("x", 7) + value("Base64"), "invalid": value("Invalid"), "denied": value("Denied"), "scoped": value("Scoped"), "told": value("Told")}},
		{"repo", "", values{"username": "ci", "password": value("Password"), "header.X-Api-Key": value("Header")}},
		{"bearer", "", values{"token": value("Bearer")}},
		{"webhook", "", values{"webhook": value("Webhook")}},
	}
}

// moduleOf is a module of files, with more of its spec in YAML.
func moduleOf(name, more string, files map[string]string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: %s}\nspec:\n  namespace: %s\n  placement: {selector: {}}\n", name, name)
	out.WriteString(indent("  ", more))
	if len(files) > 0 {
		out.WriteString("  source:\n    inline:\n      files:\n")
		for file, text := range files {
			fmt.Fprintf(&out, "        %s: |\n%s", file, indent("          ", text))
		}
	}
	return out.String()
}

func indent(by, text string) string {
	if text == "" {
		return ""
	}
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by) + "\n"
}

// shop has what people write into manifests and bindings.
func shop(version string) string {
	bindings := ""
	for _, key := range []string{"global", "scoped", "rotated", "annotated", "argument", "several", "quoted", "trimmed", "escaped", "base64"} {
		bindings += fmt.Sprintf("- {name: %s, secret: {name: app, key: %s}}\n", strings.ToUpper(key), key)
	}
	return moduleOf("shop", "bindings:\n"+bindings+"- {name: LITERAL, value: "+value("Literal")+"}\n- {name: DEFAULT, clusterLabel: none, default: "+value("Default")+"}\n"+
		"- {name: IN_CLUSTER, object: {apiVersion: v1, kind: Secret, namespace: default, name: db-app, fieldPath: data.password}}\n", map[string]string{
		"ns.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n",
		"secrets.yaml": "# " + value("InlineComment") + "\napiVersion: v1\nkind: Secret\nmetadata: {name: creds}\ndata: {password: " + base64Of(value("InlineData")) + "}\nstringData: {token: " + value("InlineText") + "}\n---\n" +
			"apiVersion: v1\nkind: SecretList\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: listed}, stringData: {a: " + value("InlineList") + "}}\n",
		"s.json":    `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"json"},"stringData":{"a":"` + value("InlineJSON") + `"}}` + "\n",
		"notes.txt": value("InlineNotes") + "\n",
		"bound.yaml": `apiVersion: v1
kind: Secret
metadata: {name: bound}
stringData:
  global: "${GLOBAL}"
  scoped: "only ${SCOPED}"
  dsn: "postgres://shop:${ROTATED}@db/${ESCAPED}"
  several: "${SEVERAL}"
  quoted: "${QUOTED}"
  literal: "${LITERAL} ${DEFAULT}"
---
apiVersion: v1
kind: ConfigMap
metadata: {name: uses, annotations: {example.org/token: "${ANNOTATED}", example.org/ref: "t${TRIMMED}"}}
data: {cluster: "${IN_CLUSTER}", encoded: "${BASE64}", version: "` + version + `", escaped: "https://u:${ESCAPED}@host", several: "${SEVERAL}", quoted: "${QUOTED}"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "nginx:1", args: ["--dsn=db://u:${ARGUMENT}@db"], env: [{name: TOKEN, value: "${QUOTED}"}]}]}
`,
	})
}

const quick = "rollout: {progressDeadline: 5s}\n"

// others are modules beside it, by name; server is that of sources and gates.
func others(server string) map[string]string {
	at := func(user, path string) string {
		return strings.Replace(server, "http://", "http://"+user+"@", 1) + path
	}
	chart := map[string]string{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 1.0.0\n",
		"templates/s.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: chart}}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: chart}\nstringData: {password: {{ .Values.db.password | quote }}, over: {{ .Values.over | default \"none\" | quote }}}\n"}
	source := func(text string) string { return quick + "source: " + text + "\n" }
	secretOf := func(name, key string) string {
		return fmt.Sprintf("bindings: [{name: V, secret: {name: app, key: %s}}]\n", key)
	}
	return map[string]string{
		"chart": moduleOf("chart", quick+"package: {helm: {values: {db: {password: "+value("ChartValue")+"}}}}\noverrides: [{selector: {matchLabels: {name: c1}}, helm: {values: {over: "+value("ChartOverride")+"}}}]\n", chart),
		"patched": moduleOf("patched", quick+"overrides: [{selector: {}, patches: [{patch: \"{apiVersion: v1, kind: Secret, metadata: {name: p}, stringData: {a: "+value("Patch")+"}}\"}]}]\n",
			map[string]string{"a.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: patched}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: p}, stringData: {a: none}}\n"}),
		"basic":    moduleOf("basic", source("{http: {url: \""+server+"/refused?key="+value("URLQuery")+"\", secretName: repo}}"), nil),
		"away":     moduleOf("away", source("{http: {url: "+server+"/elsewhere, secretName: repo}}"), nil),
		"token":    moduleOf("token", source("{http: {url: "+server+"/refused, secretName: bearer}}"), nil),
		"urls":     moduleOf("urls", source("{http: {url: \""+at(value("URLUser")+":"+value("URLPassword"), "/refused")+"\"}}"), nil),
		"broken":   moduleOf("broken", source("{http: {url: \"http://u:"+value("URLBroken")+"@%zz/x\"}}"), nil),
		"git":      moduleOf("git", source("{git: {url: \""+at("u:"+value("GitPassword"), "/refused/x.git")+"\"}}"), nil),
		"helm":     moduleOf("helm", source("{helm: {repo: \""+at("u:"+value("HelmPassword"), "/refused")+"\", chart: x}}"), nil),
		"followed": moduleOf("followed", "source: {http: {url: "+server+"/ok/a.yaml}, follow: {interval: 1h, webhook: true}}\n", nil),
		"gated": moduleOf("gated", "rollout: {stages: [{name: all, before: [{webhook: {url: \""+at("u:"+value("GatePassword"), "/refused/"+value("GatePath"))+"\", hmacKeyEnv: CANARY_HMAC, retries: 0}}, "+
			"{metric: {address: \""+at("u:"+value("MetricPassword"), "/refused")+"\", query: up, successCondition: \"true\", errorLimit: 0}}]}]}\n",
			map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: gated, namespace: default}, data: {a: b}}\n"}),
		"invalid": moduleOf("invalid", quick+secretOf("V", "invalid"), map[string]string{"a.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: invalid}}\n---\n" +
			"{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: \"${V}\", ports: [{port: 80}]}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c, labels: {x: \"a b ${V}\"}}, data: {a: b}}\n---\n" +
			"{apiVersion: v1, kind: Secret, metadata: {name: typed}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: \"${V}\"}}\n"}),
		"carried": moduleOf("carried", quick, map[string]string{"a.yaml": holders, "b.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: open}, data: {a: b}}\n# ---\n# apiVersion: v1\n# kind: Secret\n# stringData: {a: " + value("Commented") + "}\n"}),
		"denied": moduleOf("denied", quick+secretOf("V", "denied"), map[string]string{"a.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: denied}}\n---\n" +
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: denied}, data: {a: \"${V}\"}}\n"}),
	}
}

// holders is an object of another kind that carries a Secret, and others that have one as text and as a copy.
var holders = `{apiVersion: v1, kind: Namespace, metadata: {name: carried}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: holders.canaries.example.org}
spec:
  group: canaries.example.org
  scope: Namespaced
  names: {kind: Holder, plural: holders, singular: holder}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: canaries.example.org/v1
kind: Holder
metadata: {name: holder}
spec:
  manifest: {apiVersion: v1, kind: Secret, metadata: {name: made}, stringData: {password: ` + value("Carried") + `}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: resources}
data:
  secret.yaml: |
    apiVersion: v1
    kind: Secret
    metadata: {name: made}
    stringData: {password: ` + value("CarriedText") + `}
---
apiVersion: v1
kind: Secret
metadata: {name: copied, annotations: {example.org/last: '{"stringData":{"a":"` + value("InlineCopy") + `"}}'}}
stringData: {a: none}
`

// badModules are refused, and named by what is wrong with them.
func badModules(server string) map[string]string {
	file := func(text string) map[string]string { return map[string]string{"a.yaml": text} }
	return map[string]string{
		"bad YAML":   moduleOf("bad", "", file("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {a: "+value("BadYAML")+"\n")),
		"no text":    moduleOf("bad", "", file("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {a: ["+value("BadText")+"]}\n")),
		"no base64":  moduleOf("bad", "", file("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {a: \"%"+value("BadText")+"\"}\n")),
		"a field":    moduleOf("bad", "bindings: [{name: X, valu: "+value("BadField")+"}]\n", file("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n")),
		"a type":     moduleOf("bad", "bindings: [{name: X, value: {a: "+value("BadType")+"}}]\n", file("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n")),
		"an integer": moduleOf("bad", "bindings: [{name: X, value: "+value("BadType")+", type: Integer}]\n", file("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: \"${X}\"}}\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: ${X}}}\n")),
		"an address": moduleOf("bad", "source: {oci: {url: \"oci://u:"+value("OCIPassword")+"@"+strings.TrimPrefix(server, "http://")+"/x\"}}\n", nil),
		"a chart that fails": moduleOf("chartfails", quick+"package: {helm: {values: {db: {password: "+value("ChartFails")+"}}}}\n", map[string]string{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 1.0.0\n",
			"templates/s.yaml": "{{ fail (printf \"no password: %s\" (toJson .Values)) }}\n"}),
		"a patch that fails": moduleOf("patchfails", quick+"overrides: [{selector: {}, patches: [{target: {kind: ConfigMap}, patch: \"[{op: test, path: /data/a, value: "+value("PatchFails")+"}]\"}]}]\n",
			map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: p}, data: {a: none}}\n"}),
		"two sources": moduleOf("bad", "source: {http: {url: \"http://u:"+value("BadField")+"@elsewhere.example.com/x\", secretName: repo}}\n", nil),
	}
}
