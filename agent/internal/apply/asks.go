package apply

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// LogRequest says what of the log of a container is read.
type LogRequest struct {
	Container string
	Tail      int           // lines from the end; 0: all
	Since     time.Duration // 0: all
	After     time.Time     // zero: all; the server is asked by whole seconds
	Previous  bool
	Bytes     int
}

// Log reads the log of a container, each line behind its time, and reports that there is more than the bytes asked for.
func (c *Client) Log(ctx context.Context, namespace, pod string, r LogRequest) (text []byte, cut bool, err error) {
	q := c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "pods", pod, "log").Param("container", r.Container).Param("timestamps", "true")
	if r.After.IsZero() {
		// What is read already counts against the server's limit, and may be more than that within one second.
		q = q.Param("limitBytes", fmt.Sprint(r.Bytes))
	}
	switch {
	case !r.After.IsZero():
		q = q.Param("sinceTime", r.After.UTC().Format(time.RFC3339))
	case r.Since > 0:
		q = q.Param("sinceSeconds", fmt.Sprint(max(1, int(r.Since.Round(time.Second).Seconds()))))
	}
	if r.Tail > 0 && r.After.IsZero() {
		q = q.Param("tailLines", fmt.Sprint(r.Tail))
	}
	if r.Previous {
		q = q.Param("previous", "true")
	}
	body, err := q.Stream(ctx)
	if err != nil {
		return nil, false, kube.Denied(err)
	}
	defer func() { _ = body.Close() }()
	if text, cut, err = laterLines(body, r.After, r.Bytes); err != nil {
		return nil, false, fmt.Errorf("log of pod %s: %w", pod, err)
	}
	return text, cut, nil
}

// laterLines reads the lines later than a time until they take so many bytes, and reports that they do. A line without a time goes with
// the one before it; in front of all others it was read with whatever was read before.
func laterLines(log io.Reader, after time.Time, most int) (text []byte, cut bool, err error) {
	in := bufio.NewReader(log)
	begins, skip := true, !after.IsZero()
	for len(text) < most {
		part, err := in.ReadSlice('\n')
		if begins {
			if at, timed := LineTime(part); timed {
				skip = !at.After(after)
			}
		}
		if !skip {
			text = append(text, part...)
		}
		begins = err == nil
		switch {
		case errors.Is(err, io.EOF) && len(text) < most:
			return text, false, nil
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
	if end := bytes.LastIndexByte(text[:most], '\n') + 1; end > 0 {
		return text[:end], true, nil
	}
	// No part of that line is shown, for a secret that is cut in two would not be masked. The next reading goes on behind its time.
	if at, timed := LineTime(text); timed {
		return fmt.Appendf(nil, "%s (a line of more than %d bytes)\n", at.Format(time.RFC3339Nano), most), true, nil
	}
	return nil, true, nil
}

// LineTime is the time that a line of a log begins with.
func LineTime(line []byte) (at time.Time, timed bool) {
	stamp, _, _ := bytes.Cut(line, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	return at, err == nil
}

// EachEvent calls f with every Event of a namespace, until f says false.
func (c *Client) EachEvent(ctx context.Context, namespace string, f func(*corev1.Event) bool) error {
	request := func() *rest.Request { return c.rest.Get().AbsPath("/api/v1/namespaces", namespace, "events") }
	return eachPage(ctx, request, func(raw []byte) (string, bool, error) {
		var page corev1.EventList
		if err := readAs(raw, &page, &page.Kind, "List"); err != nil {
			return "", false, err
		}
		return page.Continue, each(page.Items, f), nil
	})
}

// Pod reads a pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	raw, err := c.raw(ctx, "/api/v1/namespaces", namespace, "pods", name)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	return out, nil
}

// EventOf is an Event as people are told of it.
func EventOf(e *corev1.Event) fleet.ClusterEvent {
	o := e.InvolvedObject
	group, version := fleet.SplitAPIVersion(o.APIVersion)
	if version == "" {
		version = "v1"
	}
	out := fleet.ClusterEvent{ID: fleet.ObjectID{Group: group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}, Version: version, Type: e.Type, Reason: e.Reason,
		Message: fleet.Clip(e.Message, maxEventMessage), By: e.ReportingController, First: e.FirstTimestamp.Time, Last: e.LastTimestamp.Time, Count: max(1, int(e.Count))}
	if out.By == "" {
		out.By = e.Source.Component
	}
	if e.Series != nil {
		out.Count, out.Last = max(out.Count, int(e.Series.Count)), e.Series.LastObservedTime.Time
	}
	for _, t := range []time.Time{e.EventTime.Time, e.CreationTimestamp.Time} {
		if out.First.IsZero() {
			out.First = t
		}
	}
	if out.Last.Before(out.First) {
		out.Last = out.First
	}
	return out
}

const maxEventMessage = 1024
