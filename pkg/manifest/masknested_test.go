package manifest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"
)

// password stands where nobody may be shown it, in the forms that tools keep it in.
const password = "hunter2-and-more"

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func zipped(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return encoded(out.String())
}

// shownIn masks a file, and reports what of it a viewer may not be shown.
func shownIn(t *testing.T, what, text string, kept ...string) {
	t.Helper()
	got, err := MaskFile("a.yaml", []byte(text))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, form := range []string{password, encoded(password), encoded(copyOf)[:40], "H4sI"} {
		if strings.Contains(string(got), form) {
			t.Errorf("%s: a viewer is shown\n%s", what, got)
		}
	}
	for _, part := range kept {
		if !strings.Contains(string(got), part) {
			t.Errorf("%s: %s is lost:\n%s", what, part, got)
		}
	}
}

var (
	copyOf   = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"db"},"data":{"password":"` + encoded(password) + `"}}`
	ordinary = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata: {a: b}\n"
)

// Tools keep what they applied last in annotations of the object.
func TestCopiesInAnnotationsAreMasked(t *testing.T) {
	for tool, value := range map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": copyOf,
		"kapp.k14s.io/original":                            copyOf,
		"kopf.zalando.org/last-handled-configuration":      `{"data":{"password":"` + encoded(password) + `"},"type":"Opaque"}` + "\n",
		"objectset.rio.cattle.io/applied":                  zipped(t, copyOf),
		"example.org/base64":                               encoded(copyOf),
		"example.org/yaml":                                 "password: " + password,
		"example.org/json-patch":                           `[{"op":"add","path":"/data/password","value":"` + encoded(password) + `"}]`,
		"example.org/cut-short":                            strings.TrimSuffix(copyOf, "}}"),
		"example.org/dsn":                                  "db://shop:" + password + "@db",
	} {
		for _, data := range []string{"data: {password: " + encoded(password) + "}", "stringData: {password: " + password + "}"} {
			shownIn(t, tool, "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\n  labels: {team: web}\n  annotations: {note: kept, example.org/hash: "+encoded("12345678901234567890123456789012")+", "+tool+": '"+value+"'}\n"+data+"\n",
				"note: kept", "team: web", "example.org/hash: MTIz", tool)
		}
	}
}

// What was commented out was a value a minute before, and is one again when it is put back.
func TestViewersSeeNoComments(t *testing.T) {
	out := strings.ReplaceAll("\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {password: "+password+"}\n", "\n", "\n# ")
	for what, text := range map[string]string{
		"behind an object":      ordinary + out + "\n",
		"before one":            out + "\n" + ordinary,
		"a file of comments":    out + "\n",
		"a document of them":    ordinary + "---" + out + "\n---\n" + ordinary,
		"behind a value":        strings.Replace(ordinary, "data: {a: b}", "data: {a: b} # "+password, 1),
		"within a list":         "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: open\n  finalizers:\n  # " + password + "\n  - a.b/c\n  # " + password + "\n",
		"behind a block":        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata:\n  a: | # " + password + "\n    b\n",
		"with CRLF":             strings.ReplaceAll(ordinary+"# "+password+"\n", "\n", "\r\n"),
		"behind a separator":    "--- # " + password + "\n" + ordinary,
		"behind the end":        ordinary + "... # " + password + "\n",
		"between key and value": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata:\n  # " + password + "\n\n  # " + password + "\n  a: b\n",
		"within a flow":         "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata: { # " + password + "\n  a: b } # " + password + "\n",
	} {
		shownIn(t, what, text)
		if got, err := MaskFile("a.yaml", []byte(text)); what != "a file of comments" && (err != nil || !strings.Contains(string(got), "name: open")) {
			t.Errorf("%s: is lost: %s, %v", what, got, err)
		}
	}
	script := "# of nobody\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata:\n  run.sh: |\n    # says hello\n    echo '#1'\n  colour: '#fff'\n"
	if got, err := MaskFile("a.yaml", []byte(script)); err != nil || string(got) != strings.TrimPrefix(script, "# of nobody\n") {
		t.Errorf("what is no comment is not as it was: %s, %v", got, err)
	}
	without := "kind: ConfigMap\napiVersion:   v1\nmetadata: {name: open}\n\ndata:  {a: 'b'}\n"
	if got, err := MaskFile("a.yaml", []byte(without)); err != nil || string(got) != without {
		t.Errorf("a file without comments is not as it was put: %s, %v", got, err)
	}
}

// Other kinds carry Secrets to where they are made.
func TestSecretsInOtherKindsAreMasked(t *testing.T) {
	const secret = "{apiVersion: v1, kind: Secret, metadata: {name: t-db}, stringData: {password: " + password + "}}"
	text := strings.ReplaceAll(copyOf, `"`, `\"`)
	for what, doc := range map[string]string{
		"Template":                     "apiVersion: template.openshift.io/v1\nkind: Template\nmetadata: {name: t}\nobjects: [" + secret + "]\nparameters: [{name: P, value: " + password + "}]\n",
		"ManifestWork":                 "apiVersion: work.open-cluster-management.io/v1\nkind: ManifestWork\nmetadata: {name: t}\nspec: {workload: {manifests: [" + secret + "]}}\n",
		"SyncSet":                      "apiVersion: hive.openshift.io/v1\nkind: SyncSet\nmetadata: {name: t}\nspec: {resources: [{kind: ConfigMap, apiVersion: v1}, " + secret + "]}\n",
		"Object":                       "apiVersion: kubernetes.crossplane.io/v1alpha2\nkind: Object\nmetadata: {name: t}\nspec: {forProvider: {manifest: " + secret + "}}\n",
		"ClusterPolicy":                "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: t}\nspec: {rules: [{generate: {apiVersion: v1, kind: Secret, name: db, data: {kind: Secret, data: {p: " + encoded(password) + "}}}}]}\n",
		"SecretList":                   "apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: t}\nspec: {list: {apiVersion: v1, kind: SecretList, items: [{metadata: {name: db}, data: {p: " + encoded(password) + "}}]}}\n",
		"List":                         "apiVersion: v1\nkind: List\nitems: [" + secret + "]\n",
		"ConfigMap with a manifest":    ordinary + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata:\n  a.yaml: |\n    " + secret + "\n",
		"ConfigMap with two":           "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata:\n  a.yaml: |\n    kind: ConfigMap\n    ---\n    apiVersion: v1\n    kind: Secret\n    stringData:\n      p: " + password + "\n",
		"ConfigMap with a template":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata:\n  a.yaml: |\n    {{- if .on }}\n    kind: Secret\n    stringData: {password: " + password + "}\n    {{ end }}\n",
		"ConfigMap with a comment":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata:\n  a.yaml: |\n    a: b\n    # kind: Secret\n    # stringData: {password: " + password + "}\n",
		"ConfigMap with JSON":          "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata: {a.json: '" + copyOf + "'}\n",
		"ConfigMap with JSON in JSON":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata: {a.json: '{\"spec\":\"" + text + "\"}'}\n",
		"ConfigMap in base64":          "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\nbinaryData: {a.json: " + encoded(copyOf) + "}\n",
		"ConfigMap of a Helm release":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata: {release: " + zipped(t, `{"manifest":"---\n# Source: a\n`+text+`\n"}`) + "}\n",
		"a copy of what holds one":     "apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: t, annotations: {kapp.k14s.io/original: '{\"spec\":[" + copyOf + "]}'}}\n",
		"a packed copy of it":          "apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: t, annotations: {objectset.rio.cattle.io/applied: '" + zipped(t, `{"spec":[`+copyOf+`]}`) + "'}}\n",
		"a Secret with a copy in it":   "apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: t}\nspec: {object: {kind: Secret, apiVersion: v1, metadata: {name: db, annotations: {a: '" + copyOf + "'}}}}\n",
		"misplaced in what is carried": "apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: t}\nspec: {object: {kind: Secret, apiVersion: v1, metadata: {name: db}, spec: {p: " + password + "}}}\n",
	} {
		shownIn(t, what, doc, "name: t")
		got, err := MaskFile("a.yaml", []byte(doc))
		if MaskedIn("a.yaml", []byte(doc)) || err == nil && what != "List" && !MaskedIn("a.yaml", got) {
			t.Errorf("%s: what was masked is not told from what was not:\n%s", what, got)
		}
	}
}

// Who only names a Secret holds none of its values.
func TestWhatNamesASecretIsShown(t *testing.T) {
	for _, text := range []string{
		"apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: a}\nspec:\n  valuesFrom:\n    - kind: Secret\n      name: values\n      valuesKey: data\n",
		"apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\nspec: {ignoreDifferences: [{kind: Secret, jsonPointers: [/data]}]}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: 'the secret of data', b.yaml: \"valuesFrom: [{kind: Secret, name: x}]\\ndata: {a: b}\\n\", c: '***'}\n",
		"apiVersion: bitnami.com/v1alpha1\nkind: SealedSecret\nmetadata: {name: a}\nspec: {encryptedData: {a: AgBy3i4OJSWK}, template: {type: Opaque}}\n",
	} {
		if got, err := MaskFile("a.yaml", []byte(text)); err != nil || string(got) != text || MaskedIn("a.yaml", got) {
			t.Errorf("%s is shown as\n%s, %v", text, got, err)
		}
	}
}

// Text that unpacks to much more than it is is not unpacked whole, and not shown.
func TestUnpackingIsBounded(t *testing.T) {
	bomb := zipped(t, strings.Repeat(" ", 64<<20)+copyOf)
	got, err := MaskFile("a.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: "+bomb+"}\n"))
	if err != nil || strings.Contains(string(got), bomb) {
		t.Errorf("%.200s, %v", got, err)
	}
}
