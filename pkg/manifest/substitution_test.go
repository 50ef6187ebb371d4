package manifest

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestSubstitution: what a placeholder means to an agent that knows more than ${NAME}.
func TestSubstitution(t *testing.T) {
	values := map[string]string{"CLUSTER": "eu-1", "EMPTY": "", "N": "3", "HALF": "0.5", "ON": "true", "NEST": "${CLUSTER}"}
	types := map[string]fleet.BindingType{"N": fleet.BindingInteger, "HALF": fleet.BindingNumber, "ON": fleet.BindingBoolean, "EMPTY": fleet.BindingInteger}
	for _, tt := range []struct {
		name, in, want string
		strict         bool
	}{
		{name: "a value", in: `{"a":"in ${CLUSTER}!"}`, want: `{"a":"in eu-1!"}`},
		{name: "a value that is there wins", in: `{"a":"${CLUSTER:-none}"}`, want: `{"a":"eu-1"}`},
		{name: "something stands in for an empty one", in: `{"a":"<${EMPTY:-none at all}>"}`, want: `{"a":"<none at all>"}`},
		{name: "nothing stands in", in: `{"a":"<${EMPTY:-}>"}`, want: `{"a":"<>"}`},
		{name: "an empty value without more", in: `{"a":"<${EMPTY}>"}`, want: `{"a":"<>"}`},
		{name: "escaped", in: `{"a":"$${CLUSTER} ${CLUSTER}"}`, want: `{"a":"${CLUSTER} eu-1"}`},
		{name: "escaped with a default", in: `{"a":"$${EMPTY:-x}"}`, want: `{"a":"${EMPTY:-x}"}`},
		{name: "one dollar before an escape", in: `{"a":"$$${CLUSTER}"}`, want: `{"a":"$${CLUSTER}"}`},
		{name: "an escape of what is not declared is text", in: `{"a":"$${OTHER} ${OTHER:-x} ${OTHER}"}`, want: `{"a":"$${OTHER} ${OTHER:-x} ${OTHER}"}`},
		{name: "under Strict it is an escape", in: `{"a":"$${OTHER} $${other}"}`, want: `{"a":"${OTHER} $${other}"}`, strict: true},
		{name: "what stands in ends in its line", in: `{"a":"${CLUSTER:-x\n}"}`, want: `{"a":"${CLUSTER:-x\n}"}`},
		{name: "within what is text", in: `{"a":"${OTHER:-${CLUSTER}}"}`, want: `{"a":"${OTHER:-eu-1}"}`},
		{name: "other forms of a shell are text", in: `{"a":"${CLUSTER-x} ${CLUSTER:=x} ${CLUSTER#x} $CLUSTER"}`, want: `{"a":"${CLUSTER-x} ${CLUSTER:=x} ${CLUSTER#x} $CLUSTER"}`},
		{name: "values are not looked at again", in: `{"a":"${NEST}"}`, want: `{"a":"${CLUSTER}"}`},
		{name: "typed", in: `{"spec":{"a":"${N}","b":["${HALF}","${ON}"],"c":"${EMPTY:-7}"}}`, want: `{"spec":{"a":3,"b":[0.5,true],"c":7}}`},
		{name: "a type within a text", in: `{"spec":"n=${N}"}`, want: `{"spec":"n=3"}`},
		{name: "metadata is text", in: `{"metadata":{"labels":{"n":"${N}"}},"spec":"${N}"}`, want: `{"metadata":{"labels":{"n":"3"}},"spec":3}`},
		{name: "data is text", in: `{"apiVersion":"v1","data":{"n":"${N}"},"kind":"ConfigMap"}`, want: `{"apiVersion":"v1","data":{"n":"3"},"kind":"ConfigMap"}`},
		{name: "an object that is exempt", in: `{"metadata":{"annotations":{"towline.dev/substitute":"disabled"}},"spec":"${N} $${N}"}`,
			want: `{"metadata":{"annotations":{"towline.dev/substitute":"disabled"}},"spec":"${N} $${N}"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object, err := Decode([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			err = Substitute(object, values, &fleet.Substitution{Strict: tt.strict, Types: types}, MaxObjectBytes)
			if err != nil || string(Canonical(object)) != tt.want {
				t.Errorf("got %s, %v; want %s", Canonical(object), err, tt.want)
			}
		})
	}
	object := map[string]any{"spec": "${N}"}
	err := Substitute(object, map[string]string{"N": "s3cret"}, &fleet.Substitution{Types: types}, MaxObjectBytes)
	if err == nil || !strings.Contains(err.Error(), "${N} is no whole number") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a value of another type: %v", err)
	}
}

// TestPlaceholdersAreChecked: what no value could mend is refused when the manifests are read, with the object and the mend.
func TestPlaceholdersAreChecked(t *testing.T) {
	opts := Options{Namespace: "shop", Declared: []string{"CLUSTER", "REGION", "N"}, Optional: []string{"REGION"}, Types: map[string]fleet.BindingType{"N": fleet.BindingInteger}}
	const head = "apiVersion: v1\nkind: ConfigMap\n"
	for name, tc := range map[string]struct {
		text     string
		strict   bool
		says     string // empty: it is taken
		extended bool
	}{
		"plain":                             {text: head + "metadata: {name: a}\ndata: {k: '${CLUSTER} ${HOME} $${HOME} ${HOME:-x}'}"},
		"a default":                         {text: head + "metadata: {name: a}\ndata: {k: '${REGION:-eu}'}", extended: true},
		"a default in the name":             {text: head + "metadata: {name: 'a-${REGION:-eu}'}", extended: true},
		"an escape":                         {text: head + "metadata: {name: a}\ndata: {k: '$${CLUSTER}'}", extended: true},
		"a whole scalar of a type":          {text: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: '${N}'}", extended: true},
		"optional without anything instead": {text: head + "metadata: {name: a}\ndata: {k: 'x${REGION}'}", says: "ConfigMap shop/a: ${REGION}: the binding is optional, and has no value in some clusters: write ${REGION:-TEXT}"},
		"a placeholder instead":             {text: head + "metadata: {name: a}\ndata: {k: '${REGION:-${CLUSTER}}'}", says: "${REGION:-…}: what stands in for a value is text"},
		"of another type instead":           {text: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: '${N:-many}'}", says: "${N:-…}: what stands in for a value is no whole number"},
		"not declared, Strict":              {text: head + "metadata: {name: a}\ndata: {k: 'secret ${HOME}'}", strict: true, says: "ConfigMap shop/a: ${HOME} is not declared, and spec.bindingsMode is Strict: declare it in spec.bindings, write $${HOME} for the text"},
		"escaped, Strict":                   {text: head + "metadata: {name: a}\ndata: {k: '$${HOME}'}", strict: true, extended: true},
		"exempt, Strict":                    {text: head + "metadata: {name: a, annotations: {towline.dev/substitute: disabled}}\ndata: {k: '${HOME} ${REGION}'}", strict: true, extended: true},
		"exempt with nothing to substitute": {text: head + "metadata: {name: a, annotations: {towline.dev/substitute: disabled}}"},
		"exempt with one in the name":       {text: head + "metadata: {name: 'a-${CLUSTER}', annotations: {towline.dev/substitute: disabled}}", says: "is no name"},
		"another word than disabled":        {text: head + "metadata: {name: a, annotations: {towline.dev/substitute: 'no'}}", says: `annotation towline.dev/substitute: "no" is unknown; use disabled, or remove it`},
	} {
		t.Run(name, func(t *testing.T) {
			opts := opts
			opts.Strict = tc.strict
			objects, err := ParseSet(map[string][]byte{"a.yaml": []byte(tc.text)}, opts)
			switch {
			case tc.says == "" && err != nil:
				t.Error(err)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("error %v, want one that says %q", err, tc.says)
			case tc.says == "" && objects[0].Extended != tc.extended:
				t.Errorf("extended: %t", objects[0].Extended)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("tells the text: %v", err)
			}
		})
	}
}

// FuzzSubstitution: what was read without a finding is substituted without one, and what has no placeholders of declared names stays.
func FuzzSubstitution(f *testing.F) {
	for _, s := range []string{"a ${A} b", "$${A}", "${A:-x}", "${A:-${B}}", "$$${B:-}", "${C}${A", "${A:-\n}"} {
		f.Add(s, "", true)
	}
	f.Fuzz(func(t *testing.T, text, a string, strict bool) {
		opts := Options{Namespace: "x", Declared: []string{"A", "B"}, Strict: strict}
		objects, err := ParseSet(map[string][]byte{"f.json": Canonical(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "f"}, "data": map[string]any{"k": text}})}, opts)
		if err != nil {
			return
		}
		var how *fleet.Substitution
		if objects[0].Extended {
			how = &fleet.Substitution{Strict: strict}
		}
		got, err := Decode(objects[0].Raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := Substitute(got, map[string]string{"A": a, "B": ""}, how, MaxObjectBytes); err != nil {
			t.Fatal(err)
		}
		if len(objects[0].Placeholders) == 0 && how == nil && string(Canonical(got)) != string(objects[0].Raw) {
			t.Fatalf("%s became %s", objects[0].Raw, Canonical(got))
		}
	})
}
