package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"towline.dev/towline/test/lab"
)

// hubs is how many share one store in the tale of several.
const hubs = 3

// inStages has the first cluster first, and rests before the others.
const inStages = `  rollout:
    stages:
    - name: first
      selector: {matchLabels: {region: us}}
      soak: 5s
    - name: others
`

// ofSeveral is the tale of three hubs.
func (s *story) ofSeveral() []step {
	return []step{
		{"Start three hubs on three etcd members, and three Kubernetes control planes", s.start},
		{"Let the clusters join", s.join},
		{"Put a module on one hub, and look at another", s.putAtOne},
		{"Kill the hub that leads, in the middle of a rollout", s.killLeader},
		{"Kill a member of etcd, and go on", s.killMember},
		{"Start all of it again", s.revive},
		{"Delete the module", s.remove},
	}
}

// ask has commands go to a hub from now on.
func (s *story) ask(h *lab.Hub) {
	s.lab.Hub = h
	s.out.say("Now %s is asked.", h.Name)
}

// follower is a hub that runs and does not lead.
func (s *story) follower() (leader, follower *lab.Hub, err error) {
	if leader, err = s.lab.Leader(); err != nil {
		return nil, nil, err
	}
	for _, h := range s.lab.Hubs {
		if h != leader && h.Running() {
			return leader, h, nil
		}
	}
	return nil, nil, fmt.Errorf("no hub runs beside %s, which leads", leader.Name)
}

func (s *story) putAtOne(ctx context.Context) error {
	if err := s.put(ctx); err != nil {
		return err
	}
	_, follower, err := s.follower()
	if err != nil {
		return err
	}
	s.ask(follower)
	if err := s.towline(ctx, "get", "trackers", "--module", "shop"); err != nil {
		return err
	}
	return lab.PollFor(ctx, patience, func() error { return s.count(ctx, len(s.lab.Clusters)*objectsOfShop) })
}

func (s *story) killLeader(ctx context.Context) error {
	leader, follower, err := s.follower()
	if err != nil {
		return err
	}
	s.ask(follower)
	if err := s.write(module("1.5", "good morning") + inStages); err != nil {
		return err
	}
	marks, err := s.marks()
	if err != nil {
		return err
	}
	if err := s.towline(ctx, "apply", "-f", s.file("shop.yaml"), "-m", "shop 1.5"); err != nil {
		return err
	}
	first := s.lab.Clusters[2] // that of the first stage
	if err := lab.PollFor(ctx, patience, func() error { return s.greets(ctx, first, "good morning") }); err != nil {
		return err
	}
	s.out.say("The first stage has it. %s leads; it is killed with SIGKILL.", leader.Name)
	leader.Kill()
	began := time.Now()
	if err := s.towline(ctx, "rollout", "status", "shop", "--timeout", "60s"); err != nil {
		return err
	}
	s.out.say("Another hub took over when the lease had ended, and the rollout is through after %s.", since(began))
	if err := s.wroteTwo(ctx, marks, "good morning"); err != nil {
		return err
	}
	s.out.say("Two writes in each cluster, by the audit logs: nothing was done twice.")
	return s.towline(ctx, "get", "clusters")
}

func (s *story) killMember(ctx context.Context) error {
	s.out.say("%s is killed. Two of three are left, and they agree.", s.lab.Members[0].Name)
	s.lab.Members[0].Kill()
	return s.roll(ctx, module("1.6", "good evening"), "shop 1.6", "good evening")
}

func (s *story) revive(ctx context.Context) error {
	var back []string
	for _, p := range s.lab.Members {
		if !p.Running() {
			back = append(back, p.Name)
			if err := p.Start(); err != nil {
				return err
			}
		}
	}
	for _, h := range s.lab.Hubs {
		if !h.Running() {
			back = append(back, h.Name)
			if err := h.Start(ctx); err != nil {
				return err
			}
			s.ask(h)
		}
	}
	s.out.say("%s are back, and know what happened meanwhile.", strings.Join(back, " and "))
	if err := s.towline(ctx, "rollout", "history", "shop"); err != nil {
		return err
	}
	return lab.PollFor(ctx, patience, func() error { return s.count(ctx, len(s.lab.Clusters)*objectsOfShop) })
}
