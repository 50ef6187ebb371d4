package manifest

import (
	"strings"
	"testing"
)

const mixed = `# the password is hunter2
apiVersion: v1
kind: ConfigMap
metadata: {name: plain}
data: {open: "yes"}
---
apiVersion: v1
kind: Secret
metadata:
  name: db
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"stringData":{"p":"hunter2"}}', team: web}
stringData: {password: hunter2} # hunter2
data: {token: aHVudGVyMg==}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: other}, stringData: {password: hunter2}}
---
apiVersion: v1
kind: secret
metadata: {name: misspelt}
stringData: {password: hunter2}
`

func TestMaskFile(t *testing.T) {
	got, err := MaskFile("a.yaml", []byte(mixed))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", "aHVudGVyMg=="} {
		if strings.Contains(string(got), secret) {
			t.Errorf("%s is in\n%s", secret, got)
		}
	}
	for _, open := range []string{"name: db", "password:", "token:", "open: \"yes\"", "team: web", "name: other", "name: misspelt"} {
		if !strings.Contains(string(got), open) {
			t.Errorf("%s is lost:\n%s", open, got)
		}
	}
	if MaskedIn("a.yaml", []byte(mixed)) || !MaskedIn("a.yaml", got) {
		t.Error("what was masked is not told from what was not")
	}
	plain := "apiVersion: v1\nkind: ConfigMap\ndata: {a: '***'}\n"
	if got, err := MaskFile("a.yaml", []byte(plain)); err != nil || string(got) != plain || MaskedIn("a.yaml", got) {
		t.Errorf("a file without Secrets is %q, %v", got, err)
	}
	if _, err := MaskFile("a.yaml", []byte("kind: Secret\nstringData: {a: [}\n")); err == nil {
		t.Error("what cannot be read is shown")
	}
	for _, opaque := range []string{
		"db: {password: hunter2}\n", plain + "---\n{password: hunter2}\n", "kind: ConfigMap\npassword: hunter2\n",
		"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nsecretGenerator: [{name: db, literals: [password=hunter2]}]\n",
		"secretGenerator: [{name: db, literals: [password=hunter2]}]\n",
		"apiVersion: builtin\nkind: SecretGenerator\nmetadata: {name: db}\nliterals: [password=hunter2]\n",
	} {
		if got, err := MaskFile("a.yaml", []byte(opaque)); err == nil {
			t.Errorf("what is no manifest is shown:\n%s", got)
		}
	}
	if got, err := MaskFile("a.json", []byte(`{"kind":"Secret","data":{"a":"aHVudGVyMg=="}}`)); err != nil || strings.Contains(string(got), "aHVudGVyMg") {
		t.Errorf("JSON: %s, %v", got, err)
	}
}

// Values that are written where no Secret has them are values all the same, and are no more shown than those.
func TestMisplacedValuesAreMasked(t *testing.T) {
	for _, text := range []string{
		"stringData: |\n  password: hunter2\n", "data: [{name: password, value: hunter2}]\n", "stringdata: {password: hunter2}\n", "spec: {password: hunter2}\n",
	} {
		got, err := MaskFile("a.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: Opaque\n"+text))
		if err != nil || strings.Contains(string(got), "hunter2") || !strings.Contains(string(got), "type: Opaque") {
			t.Errorf("%s: %s, %v", text, got, err)
		}
		if !MaskedIn("a.yaml", got) {
			t.Errorf("%s: what was masked is not told from what was not", text)
		}
	}
	operators := "apiVersion: x.io/v1\nkind: Secret\nmetadata: {name: a}\nspec: {path: app}\n"
	if got, err := MaskFile("a.yaml", []byte(operators)); err != nil || !strings.Contains(string(got), "path: app") {
		t.Errorf("a kind of another group: %s, %v", got, err)
	}
}
