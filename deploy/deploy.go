// Package deploy owns the manifests that install hub and agent in Kubernetes. It fills in what differs from one
// installation to the next and must not know how the manifests are applied or where tokens come from.
package deploy

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Namespace is where hub and agent live.
const Namespace = "towline-system"

// Images that are used when none is named.
const (
	DefaultAgentImage = "towline/towline-agent"
	DefaultHubImage   = "towline/towline-hub"
)

// tokenAnnotation of the agent's pods is a hash of the join token, from which nobody gets it: with another token they are made anew, and
// come with it at once, also those of a version that reads the token once.
const tokenAnnotation = "towline.dev/join-token-hash"

//go:embed agent/*.yaml hub/*.yaml
var files embed.FS

// AgentOptions are what an agent's installation is made for.
type AgentOptions struct {
	// Hubs are HOST:PORT as reached from the cluster; at least one.
	Hubs []string
	// Token is the join token.
	Token string
	// Image is the agent's; default DefaultAgentImage with Version as tag.
	Image string
	// Version is the tag of the default image; default latest.
	Version string
	// Restricted gives the agent few rights, and none in a module's namespace before it is bound there.
	Restricted bool
	// DaemonSet runs one pod on every node instead of a Deployment of two.
	DaemonSet bool
}

// HubOptions are what a hub's installation is made for.
type HubOptions struct {
	// Advertise is HOST:PORT that agents dial; default: the Service in the hub's own cluster.
	Advertise []string
	// Image is the hub's; default DefaultHubImage with Version as tag.
	Image string
	// Version is the tag of the default image; default latest.
	Version string
}

// AgentObjects are the objects to apply, in order.
func AgentObjects(o AgentOptions) ([]*unstructured.Unstructured, error) {
	if len(o.Hubs) == 0 || o.Token == "" {
		return nil, errors.New("deploy: an agent needs the address of a hub and a join token")
	}
	workload := "agent/deployment.yaml"
	if o.DaemonSet {
		workload = "agent/daemonset.yaml"
	}
	rights := "agent/rbac.yaml"
	if o.Restricted {
		rights = "agent/rbac-restricted.yaml"
	}
	objects, err := read("agent/namespace.yaml", rights, "agent/secret.yaml", workload)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256([]byte(o.Token))
	args := []string{"run"}
	for _, hub := range o.Hubs {
		args = append(args, "--hub="+hub)
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "Secret":
			err = unstructured.SetNestedField(object.Object, o.Token, "stringData", "token")
		case "Deployment", "DaemonSet":
			err = errors.Join(setContainer(object, image(o.Image, DefaultAgentImage, o.Version), args, "--hub=", "run"),
				unstructured.SetNestedField(object.Object, hex.EncodeToString(hash[:8]), "spec", "template", "metadata", "annotations", tokenAnnotation))
		}
		if err != nil {
			return nil, fmt.Errorf("deploy: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return objects, nil
}

// AgentManifests is AgentObjects as YAML for `kubectl apply -f -`.
func AgentManifests(o AgentOptions) ([]byte, error) {
	objects, err := AgentObjects(o)
	if err != nil {
		return nil, err
	}
	return encode(objects)
}

// HubManifests is the YAML that installs a hub.
func HubManifests(o HubOptions) ([]byte, error) {
	objects, err := read("hub/namespace.yaml", "hub/services.yaml", "hub/statefulset.yaml")
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() != "StatefulSet" {
			continue
		}
		var args []string
		drop := ""
		for _, address := range o.Advertise {
			args, drop = append(args, "--advertise="+address), "--advertise="
		}
		if err := setContainer(object, image(o.Image, DefaultHubImage, o.Version), args, drop, ""); err != nil {
			return nil, fmt.Errorf("deploy: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return encode(objects)
}

func image(set, name, version string) string {
	switch {
	case set != "":
		return set
	case version == "":
		return name + ":latest"
	}
	return name + ":" + version
}

// setContainer sets the image of the only container and puts args in front of its own, of which those that begin with
// drop, and the word first, go.
func setContainer(object *unstructured.Unstructured, image string, args []string, drop, first string) error {
	path := []string{"spec", "template", "spec", "containers"}
	containers, found, err := unstructured.NestedSlice(object.Object, path...)
	if err != nil || !found || len(containers) != 1 {
		return fmt.Errorf("has not one container: %w", err)
	}
	container, ok := containers[0].(map[string]any)
	if !ok {
		return errors.New("its container is no mapping")
	}
	old, _, err := unstructured.NestedStringSlice(container, "args")
	if err != nil {
		return err
	}
	for _, arg := range old {
		if arg != first && (drop == "" || len(arg) < len(drop) || arg[:len(drop)] != drop) {
			args = append(args, arg)
		}
	}
	if serve := slices.Index(args, "serve"); serve > 0 { // the command comes before its flags
		args = append([]string{"serve"}, slices.Delete(args, serve, serve+1)...)
	}
	container["image"] = image
	if err := unstructured.SetNestedStringSlice(container, args, "args"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(object.Object, containers, path...)
}

// read parses files into objects, in order.
func read(names ...string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("deploy: %w", err)
		}
		docs := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := docs.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("deploy: %s: %w", name, err)
			}
			if len(object.Object) > 0 {
				out = append(out, object)
			}
		}
	}
	return out, nil
}

func encode(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, object := range objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		data, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("deploy: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		out.Write(data)
	}
	return out.Bytes(), nil
}
