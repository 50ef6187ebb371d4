package localpolicy

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

const head = "apiVersion: towline.dev/v1\nkind: AgentPolicy\n"

func parse(t *testing.T, body string) *Policy {
	t.Helper()
	p, err := Parse([]byte(head + body))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, body)
	}
	return p
}

// TestParseRefuses: a file with anything in it that is not understood is broken as a whole, and the error says where.
func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "is empty"},
		{"a comment alone", "# nothing\n", "is empty"},
		{"another kind", "apiVersion: towline.dev/v1\nkind: Module\n", "kind: is \"Module\""},
		{"another version", "apiVersion: v1\nkind: AgentPolicy\n", "apiVersion: is \"v1\""},
		{"unknown field", head + "freze: true\n", `line 3: unknown field "freze"`},
		{"unknown field inside", head + "allow:\n  forceConflict: true\n", `line 4: unknown field "forceConflict"`},
		{"the same field twice", head + "freeze: true\nfreeze: false\n", "line 4"},
		{"two documents", head + "---\n" + head, "more than one document"},
		{"another type", head + "maxObjects: many\n", "line 3"},
		{"no YAML", head + "\tx", "tab character"},
		{"no value", head + "kinds:\n", "line 3: has no value"},
		{"no value inside", head + "namespaces:\n  allow:\n", "line 4: has no value"},
		{"alias", head + "namespaces: &a {allow: [x]}\nmodules: *a\n", "line 4: is an alias"},
		{"neither allow nor deny", head + "namespaces: {}\n", "namespaces: has neither"},
		{"no name", head + "namespaces: {allow: ['a b']}\n", "namespaces.allow[0]"},
		{"empty name", head + "projects: {deny: ['']}\n", "projects.deny[0]"},
		{"kind in small letters", head + "kinds: [{kinds: [secrets]}]\n", "kinds[0].kinds[0]"},
		{"group with a version", head + "kinds: [{groups: [apps/v1]}]\n", "kinds[0].groups[0]"},
		{"unknown verb", head + "kinds: [{verbs: [patch]}]\n", "kinds[0].verbs[0]"},
		{"namespaces of what has none", head + "clusterScoped: {allow: [{namespaces: [x]}]}\n", "clusterScoped.allow[0].namespaces"},
		{"preset and expression", head + "denyFields: [{preset: HostPath, expression: 'true'}]\n", "denyFields[0]: needs exactly one"},
		{"unknown preset", head + "denyFields: [{preset: HostPaths}]\n", "denyFields[0].preset"},
		{"names of another preset", head + "denyFields: [{preset: HostPath, names: [x]}]\n", "denyFields[0].names"},
		{"no names", head + "denyFields: [{preset: ServiceAccount}]\n", "denyFields[0].names"},
		{"no condition", head + "denyFields: [{expression: '1'}]\n", "denyFields[0].expression"},
		{"no CEL", head + "denyFields: [{expression: 'object.'}]\n", "denyFields[0].expression"},
		{"protected", head + "protected: [{kinds: [pvc]}]\n", "protected[0].kinds[0]"},
		{"protects nothing", head + "protected: [{kinds: [PersistentVolumeClaim], namespaces: []}]\n", "protected[0].namespaces: is empty"},
		{"protects no group", head + "protected: [{kinds: [Secret]}, {groups: []}]\n", "protected[1].groups: is empty"},
		{"protects no kind", head + "protected: [{kinds: []}]\n", "protected[0].kinds: is empty"},
		{"protects no name", head + "protected: [{names: []}]\n", "protected[0].names: is empty"},
		{"denies fields of nothing", head + "denyFields: [{preset: HostPath, match: {namespaces: []}}]\n", "denyFields[0].match.namespaces: is empty"},
		{"denies no account", head + "denyFields: [{preset: ServiceAccount, names: []}]\n", "denyFields[0].names: is empty"},
		{"budget without a number", head + "deleteBudget: {}\n", "deleteBudget.perHour: is required"},
		{"negative budget", head + "deleteBudget: {perHour: -1}\n", "deleteBudget.perHour"},
		{"negative count", head + "maxObjects: -1\n", "maxObjects"},
		{"no bytes", head + "maxObjectBytes: 0\n", "maxObjectBytes"},
		{"cron", head + "windows: {allow: [{cron: x, duration: 1h}]}\n", "windows.allow[0].cron"},
		{"duration", head + "windows: {deny: [{cron: '0 0 * * *', duration: long}]}\n", "windows.deny[0].duration"},
		{"no windows", head + "windows: {allow: []}\n", "windows: has neither"},
		{"unknown read", head + "denyReads: [nodes]\n", `denyReads[0]: "nodes" is unknown; use live, events, logs or secrets`},
		{"too large", head + strings.Repeat("#", MaxBytes), "bytes; at most"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse([]byte(tc.text))
			if err == nil {
				t.Fatal("it was taken")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("says %q, not %q", err, tc.want)
			}
		})
	}
}

// TestListsThatMayBeEmpty: what is accepted may be nothing, and of what is denied there may be nothing.
func TestListsThatMayBeEmpty(t *testing.T) {
	for _, text := range []string{"protected: []\n", "denyFields: []\n", "kinds: []\n", "clusterScoped: {allow: []}\n", "namespaces: {allow: [], deny: []}\n",
		"clusterScoped: {allow: [{names: []}]}\n", "kinds: [{groups: [], verbs: []}]\n", "denyReads: []\n"} {
		parse(t, text)
	}
}

func TestDenyReads(t *testing.T) {
	p := parse(t, "denyReads: [logs, live]\n")
	for question, denied := range map[string]bool{"logs": true, "get": true, "events": false, "preview": false} {
		if p.DeniesRead(question) != denied {
			t.Errorf("%s: denied %t", question, !denied)
		}
		if may := question != "preview"; MayDenyRead(question) != may {
			t.Errorf("%s: may be denied %t", question, !may)
		}
	}
}

// TestDigestIsThatOfTheFile: people compare it with sha256sum.
func TestDigestIsThatOfTheFile(t *testing.T) {
	if p := parse(t, "freeze: true\n"); p.Digest != fleet.DigestOf([]byte(head+"freeze: true\n")) {
		t.Errorf("digest %s", p.Digest)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + full))
	f.Add([]byte(head + "windows: {allow: [{cron: '0 9 * * *', duration: 8h}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if (p == nil) == (err == nil) {
			t.Fatalf("policy %v with error %v", p, err)
		}
		if p == nil {
			return
		}
		for _, id := range []fleet.ObjectID{pod, {Kind: "Namespace", Name: "x"}} {
			for _, v := range []Verb{Create, Update, Delete, Recreate, Force, Release, Keep} {
				p.Judge(Request{Verb: v, ID: id, Object: map[string]any{"kind": id.Kind, "spec": map[string]any{}}})
			}
		}
	})
}
