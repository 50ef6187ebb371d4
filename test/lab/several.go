package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sync/errgroup"
)

// startHubs starts the one hub, or the etcd that several share and then those, one after the other: the first makes the CA.
func (l *Lab) startHubs(ctx context.Context) error {
	var args [][]string
	if l.o.Hubs > 1 {
		endpoints, err := l.startMembers()
		if err != nil {
			return err
		}
		for range l.o.Hubs {
			args = append(args, []string{"--etcd-endpoints", endpoints, "--share-etcd", "--ca-dir", filepath.Join(l.Dir, "ca")})
		}
	} else {
		args = append(args, nil)
	}
	for i := range args {
		name := "hub"
		if l.o.Hubs > 1 {
			name = fmt.Sprintf("hub-%d", i+1)
		}
		h, err := l.newHub(name, args[i]...)
		if err != nil {
			return err
		}
		if l.Hubs = append(l.Hubs, h); i == 0 {
			l.Hub = h
		}
		if err := h.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startMembers starts an etcd of as many members as there are hubs, and returns its endpoints.
func (l *Lab) startMembers() (string, error) {
	var names, clients, peers, all, endpoints []string
	for i := range l.o.Hubs {
		client, err := FreeAddress()
		if err != nil {
			return "", err
		}
		peer, err := FreeAddress()
		if err != nil {
			return "", err
		}
		name := fmt.Sprintf("etcd-%d", i+1)
		names, clients, peers = append(names, name), append(clients, "http://"+client), append(peers, "http://"+peer)
		all, endpoints = append(all, name+"=http://"+peer), append(endpoints, client)
	}
	var g errgroup.Group
	for i, name := range names {
		p := l.process(name, l.o.Kubelab, "etcd", "--name", name, "--data-dir", filepath.Join(l.Dir, name), "--log-level", "warn",
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i], "--listen-peer-urls", peers[i],
			"--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(all, ","))
		l.Members = append(l.Members, p)
		g.Go(p.Start)
	}
	return strings.Join(endpoints, ","), g.Wait()
}

var began = regexp.MustCompile(`(?m)^time=(\S+) .*msg=leading$`)

// Leader is the hub that began to lead last, of those that run.
func (l *Lab) Leader() (*Hub, error) {
	var leader *Hub
	var since string
	for _, h := range l.Hubs {
		if !h.Running() {
			continue
		}
		for _, m := range began.FindAllStringSubmatch(h.Output(), -1) {
			if m[1] > since { // times of one format are in the order of their text
				leader, since = h, m[1]
			}
		}
	}
	if leader == nil {
		return nil, errors.New("no hub leads")
	}
	return leader, nil
}
