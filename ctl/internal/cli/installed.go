package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/deploy"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// installed is what of an agent's installation decides whether another one may take its place.
type installed struct {
	role, deployment, daemonSet, join *unstructured.Unstructured
}

// lookInstalled reads it; what is not there is nil.
func lookInstalled(ctx context.Context, kube dynamic.Interface) (found installed, err error) {
	for _, of := range []struct {
		into            **unstructured.Unstructured
		group, resource string
		namespace, name string
	}{
		{&found.role, "rbac.authorization.k8s.io", "clusterroles", "", "towline-agent"},
		{&found.deployment, "apps", "deployments", deploy.Namespace, "towline-agent"},
		{&found.daemonSet, "apps", "daemonsets", deploy.Namespace, "towline-agent"},
		{&found.join, "", "secrets", deploy.Namespace, "towline-join"},
	} {
		in := kube.Resource(schema.GroupVersionResource{Group: of.group, Version: "v1", Resource: of.resource}).Namespace(of.namespace)
		object, err := in.Get(ctx, of.name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return found, fmt.Errorf("looking at the agent that is there, %s %s: %w", of.resource, of.name, err)
		}
		if err == nil {
			*of.into = object
		}
	}
	return found, nil
}

// refuses says why an agent of these hubs may not take the place of what is there unasked: it would have more rights, or
// another hub or another cluster would take it over.
func (i installed) refuses(name string, hubs []string, restricted bool) error {
	if i.role != nil && !restricted && !allRights(i.role) {
		return errors.New("its agent is installed with few rights: say --restricted, or --replace to give it all")
	}
	for _, workload := range []*unstructured.Unstructured{i.deployment, i.daemonSet} {
		if old := hubsOf(workload); len(old) > 0 && !slices.ContainsFunc(old, func(hub string) bool { return slices.Contains(hubs, hub) }) {
			return fmt.Errorf("its agent is that of the hub %s, and this one is %s there: if it is the right context, say --replace", strings.Join(old, ", "), strings.Join(hubs, ", "))
		}
	}
	if old := clusterOf(i.join); old != "" && old != fleet.ClusterName(name) {
		return fmt.Errorf("its agent is that of cluster %s: if it is the right context, say --replace", old)
	}
	return nil
}

// allRights reports that a role has the rights of the full form, of which the restricted one has none.
func allRights(role *unstructured.Unstructured) bool {
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	return slices.ContainsFunc(rules, func(rule any) bool {
		r, _ := rule.(map[string]any)
		groups, _, _ := unstructured.NestedStringSlice(r, "apiGroups")
		resources, _, _ := unstructured.NestedStringSlice(r, "resources")
		verbs, _, _ := unstructured.NestedStringSlice(r, "verbs")
		return slices.Contains(groups, "*") && slices.Contains(resources, "*") && (slices.Contains(verbs, "patch") || slices.Contains(verbs, "*"))
	})
}

// hubsOf are the addresses that the containers of a workload are given.
func hubsOf(workload *unstructured.Unstructured) (hubs []string) {
	if workload == nil {
		return nil
	}
	containers, _, _ := unstructured.NestedSlice(workload.Object, "spec", "template", "spec", "containers")
	for _, c := range containers {
		container, _ := c.(map[string]any)
		args, _, _ := unstructured.NestedStringSlice(container, "args")
		for _, arg := range args {
			if hub, ok := strings.CutPrefix(arg, "--hub="); ok {
				hubs = append(hubs, hub)
			}
		}
	}
	return hubs
}

// clusterOf is the cluster of a join token's Secret; none is one that cannot be read, of which nothing is known.
func clusterOf(secret *unstructured.Unstructured) fleet.ClusterName {
	if secret == nil {
		return ""
	}
	data, _, _ := unstructured.NestedString(secret.Object, "data", "token")
	text, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return ""
	}
	token, err := jointoken.Parse(string(text))
	if err != nil {
		return ""
	}
	return token.Cluster
}
