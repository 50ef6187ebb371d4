package importer

import (
	"encoding/base64"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/wire"
)

// fluxModes are the words of Flux for what of a repository is signed, older ones among them.
var fluxModes = map[string]string{"": "", "HEAD": wire.VerifyHead, "head": wire.VerifyHead, "Tag": wire.VerifyTag, "TagAndHEAD": wire.VerifyTagAndHead}

// verify carries over by whom a source is signed. The keys are public, and in a Secret: of that nothing else is read.
func (d *flux) verify(f field) {
	if !f.set() {
		return
	}
	v := &v1.Verify{}
	provider, known := f.at("provider").text(), true
	if d.m.Spec.Source.Git != nil {
		v.Mode, known = fluxModes[f.at("mode").text()]
	}
	name := f.at("secretRef", "name").text()
	switch {
	case !known:
		f.drop("mode %s has nothing that does the same: write source.verify", f.at("mode").text())
		return
	case provider != "" && provider != "cosign":
		f.drop("signatures of %s are not read: cosign with a key is what source.verify checks", provider)
		return
	case d.m.Spec.Source.Git == nil && name == "":
		f.drop("a signature without a key, by an identity, is not read: sign with cosign sign --key, and write source.verify with cosignKeys")
		return
	case d.m.Spec.Source.Helm != nil && !strings.HasPrefix(d.m.Spec.Source.Helm.Repo, "oci://"):
		f.drop("a chart of a repository over https has no signature that is read: take it from a registry (oci://)")
		return
	}
	if d.publicKeys(f, name, v); len(v.PgpKeys)+len(v.SshKeys)+len(v.CosignKeys) == 0 {
		f.drop("the module would take what nobody has signed: put Secret %s into the files that are imported, or write its public keys into source.verify", name)
		return
	}
	f.at("matchOIDCIdentity").drop("the key alone decides")
	d.m.Spec.Source.Verify = v
}

// publicKeys reads the public keys of a Secret that is among the files.
func (d *flux) publicKeys(f field, name string, v *v1.Verify) {
	doc, ok := d.find("", "Secret", d.Namespace(), name)
	if !ok {
		return
	}
	in := d.beside(doc)
	for _, at := range []string{"data", "stringData"} {
		for _, key := range in.at(at).keys() {
			text := in.at(at, key).text()
			if at == "data" {
				decoded, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					continue
				}
				text = string(decoded)
			}
			d.publicKey(text, v)
		}
	}
}

// publicKey puts a key into the list of its kind; what is no public key is left out.
func (d *flux) publicKey(text string, v *v1.Verify) {
	git := d.m.Spec.Source.Git != nil
	switch text = strings.TrimSpace(text) + "\n"; {
	case strings.Contains(text, "PRIVATE KEY"):
	case git && strings.HasPrefix(text, "-----BEGIN PGP PUBLIC KEY BLOCK-----"):
		v.PgpKeys = append(v.PgpKeys, text)
	case git && (strings.Contains(text, "ssh-") || strings.Contains(text, "ecdsa-sha2-")):
		v.SshKeys = append(v.SshKeys, text)
	case !git && strings.HasPrefix(text, "-----BEGIN PUBLIC KEY-----"):
		v.CosignKeys = append(v.CosignKeys, text)
	}
}
