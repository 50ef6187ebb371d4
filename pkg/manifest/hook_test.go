package manifest

import (
	"strings"
	"testing"
)

// TestHooksOfAChart: which wave an object has by its annotations, in a chart and elsewhere.
func TestHooksOfAChart(t *testing.T) {
	for annotations, want := range map[string]int32{
		`{}`: 0, `{helm.sh/hook: pre-install}`: -1000000, `{helm.sh/hook: "pre-upgrade", helm.sh/hook-weight: "-5"}`: -1000005,
		`{helm.sh/hook: "post-install, post-upgrade", helm.sh/hook-weight: "3"}`: 1000003, `{helm.sh/hook: "post-install,pre-upgrade"}`: -1000000,
		`{helm.sh/hook: POST-INSTALL, helm.sh/hook-weight: much}`: 1000000, `{helm.sh/hook: pre-install, helm.sh/hook-weight: "-999999999"}`: -1100000,
		`{helm.sh/hook: pre-install, towline.dev/wave: "2"}`: 2, `{helm.sh/hook: something}`: 0, `{helm.sh/hook-weight: "4"}`: 0,
	} {
		files := map[string][]byte{"a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b, annotations: " + annotations + "}\n")}
		objects, err := ParseSet(files, Options{Chart: true})
		if err != nil || objects[0].Wave != want {
			t.Errorf("%s: %v, %v; want wave %d", annotations, objects, err, want)
		}
		plain, err := ParseSet(files, Options{})
		if err != nil || plain[0].Wave != 0 && !strings.Contains(annotations, "towline.dev") {
			t.Errorf("%s, plain: %v, %v", annotations, plain, err)
		}
	}
}

// TestKeyGivenTwice: the last one counts in a chart, as for Helm; elsewhere it is an error.
func TestKeyGivenTwice(t *testing.T) {
	files := map[string][]byte{"a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\ndata: {x: '1', b: '2', x: '3'}\n")}
	if _, err := ParseSet(files, Options{}); err == nil || !strings.Contains(err.Error(), `key "x" is given twice`) {
		t.Errorf("got %v", err)
	}
	objects, err := ParseSet(files, Options{Chart: true})
	if err != nil || !strings.Contains(string(objects[0].Raw), `"data":{"b":"2","x":"3"}`) {
		t.Errorf("%v, %v", objects, err)
	}
}

// TestObjectsThatRunTogether: a template of a chart that writes one object after the other with nothing between them makes one document, of which
// Helm takes the last one. What was there before a value became two would be dropped.
func TestObjectsThatRunTogether(t *testing.T) {
	object := func(kind, meta string) string {
		return "apiVersion: v1\nkind: " + kind + "\nmetadata: {" + meta + "}\n"
	}
	for text, refused := range map[string]bool{
		object("ConfigMap", "name: a") + object("ConfigMap", "name: b"):                                              true,
		object("ConfigMap", "name: a") + object("Secret", "name: a"):                                                 true,
		object("ConfigMap", "name: a, namespace: x") + object("ConfigMap", "name: a, namespace: y"):                  true,
		strings.TrimSpace(object("ConfigMap", "name: a")+"data:\n  a: b") + "---\n" + object("ConfigMap", "name: b"): true,
		object("ConfigMap", "name: a") + "  ---\n" + object("ConfigMap", "name: b"):                                  true,
		object("ConfigMap", "name: a") + "---\n" + object("ConfigMap", "name: b"):                                    false,
		object("ConfigMap", "name: a") + object("ConfigMap", "name: a, labels: {app: b}"):                            false,
		object("ConfigMap", "labels: {app: b}") + object("ConfigMap", "name: a"):                                     false,
		"kind:\n" + object("ConfigMap", "name: a"):                                                                   false,
		"apiVersion: v2\n" + object("ConfigMap", "name: a") + "data: {kind: a}\ndata: {kind: b}\n":                   false,
	} {
		objects, err := ParseSet(map[string][]byte{"a.yaml": []byte(text)}, Options{Chart: true, Namespace: "shop"})
		if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "which would be dropped") && !strings.Contains(err.Error(), "is not YAML") {
			t.Errorf("%s%d objects, %v", text, len(objects), err)
		}
	}
}
