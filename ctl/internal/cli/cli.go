package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/version"
	"towline.dev/towline/pkg/wire"
)

// Exit codes.
const (
	exitOK         = 0
	exitFailed     = 1 // failed, aborted, rolled back, or paused by failures
	exitUsage      = 2
	exitWaits      = 3 // waits for a person
	exitTimedOut   = 4
	exitSuperseded = 5
	exitInterrupt  = 130
)

// callTimeout bounds one request that is no watch.
const callTimeout = time.Minute

// fetching are the requests that a hub answers when it has fetched a source, which may take as long as that says.
var fetching = []string{v1.ModuleService_ResyncModule_FullMethodName, v1.ModuleService_DiffModule_FullMethodName, v1.ModuleService_RenderModule_FullMethodName,
	v1.CatalogService_ResyncCatalog_FullMethodName}

// Streams are the world around the command.
type Streams struct {
	In          io.Reader
	Out, Err    io.Writer
	InTerminal  bool                       // there is somebody to ask
	OutTerminal bool                       // colours, footers and live views
	Size        func() (columns, rows int) // of the terminal
	Getenv      func(string) string
	// ReadHidden reads a line from the terminal that is not shown; nil: there is none.
	ReadHidden func(context.Context) ([]byte, error)
	Now        func() time.Time
	Zone       *time.Location
}

// System is the process's own world.
func System() Streams {
	out := int(os.Stdout.Fd())
	return Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTerminal: term.IsTerminal(int(os.Stdin.Fd())), OutTerminal: term.IsTerminal(out),
		Size: func() (int, int) {
			columns, rows, err := term.GetSize(out)
			if err != nil || columns <= 0 {
				return 80, 24
			}
			return columns, rows
		},
		Getenv: os.Getenv, ReadHidden: readHidden, Now: time.Now, Zone: time.Local,
	}
}

// Dial makes the client of a hub.
type Dial func(context.Context, client.Options) (*client.Client, error)

// app is one run of the command.
type app struct {
	Streams
	dial   Dial
	client *client.Client

	config  string
	context string
	project string
	begun   bool // the command line was understood

	onBreak func(error) // a watch lost the hub and tries again
}

// Main runs the command and is its exit code.
func Main(ctx context.Context, args []string, s Streams, dial Dial) int {
	out := &sink{w: s.Out}
	s.In, s.Out = interruptible{ctx, s.In}, out
	a := &app{Streams: s, dial: dial}
	a.onBreak = a.sayBreak()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	err := root.ExecuteContext(ctx)
	if a.client != nil {
		err = joinCodes([]error{err, a.client.Close()})
	}
	return a.exit(ctx, out.with(err))
}

// sayBreak tells that a watch lost the hub and tries again. It is told to logs as well, for a wait may last; there is no
// need to repeat it at every try.
func (a *app) sayBreak() func(error) {
	last, at := "", time.Time{}
	return func(err error) {
		if now := a.Now(); err.Error() != last || now.Sub(at) >= time.Minute {
			last, at = err.Error(), now
			a.notef("%s; trying again\n", table.Clean(last))
		}
	}
}

// exitError ends the command with a code; a nil err means that all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// exit prints the error, one sentence a line, and is the code.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	code := cmp.Or(codeOf(err), exitFailed)
	var coded *exitError
	switch is := errors.As(err, &coded); {
	case a.begun && ctx.Err() != nil && errors.Is(err, context.Canceled):
		a.notef("interrupted\n")
		for _, line := range besides(err) {
			a.notef("%s\n", table.Clean(line))
		}
		return exitInterrupt
	case is && coded.err == nil:
		return code
	case !is && !a.begun:
		code = exitUsage
	}
	for _, line := range strings.Split(strings.TrimSpace(err.Error()), "\n") {
		a.notef("%s %s\n", a.paintErr(table.Red, "Error:"), table.Clean(line))
	}
	if olderHub(err) {
		a.notef("The hub is older than this towline, and does not know all that this command asks for: upgrade the hubs first.\n")
	}
	return code
}

// olderHub reports that the hub has refused a field that it does not know: it has only the number of that.
func olderHub(err error) bool {
	var field *fleet.FieldError
	if !errors.As(err, &field) {
		return false
	}
	name := field.Path[strings.LastIndexByte(field.Path, '.')+1:]
	number, numbered := strings.CutPrefix(name, "#")
	_, err = strconv.ParseUint(number, 10, 32)
	return numbered && err == nil
}

// printf writes to stdout.
func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.Out, format, args...) }

// notef writes to stderr.
func (a *app) notef(format string, args ...any) { fmt.Fprintf(a.Err, format, args...) }

// footf writes a footer: to stderr, for people only.
func (a *app) footf(format string, args ...any) {
	if a.OutTerminal {
		a.notef(format, args...)
	}
}

func (a *app) warnf(format string, args ...any) {
	a.notef("%s %s\n", a.paintErr(table.Yellow, "Warning:"), fmt.Sprintf(format, args...))
}

func (a *app) color() bool { return a.OutTerminal && a.Getenv("NO_COLOR") == "" }

func (a *app) paint(c table.Color, s string) string    { return table.Paint(a.color(), c, s) }
func (a *app) paintErr(c table.Color, s string) string { return table.Paint(a.color(), c, s) }

func (a *app) width() int {
	if !a.OutTerminal {
		return 0
	}
	columns, _ := a.Size()
	return columns
}

// hub is the client, made on first use.
func (a *app) hub(ctx context.Context) (*client.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	c, err := a.dial(ctx, client.Options{
		Config: a.config, ContextName: a.context, UserAgent: "towline/" + version.Version,
		OnBreak:     func(err error) { a.onBreak(err) }, // a live view takes it over later
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(limitCall)},
	})
	if err != nil {
		return nil, err
	}
	a.client = c
	return c, nil
}

func limitCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	limit := callTimeout
	if slices.Contains(fetching, method) {
		limit += wire.MaxFetchTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "towline",
		Short: "Deliver configuration to a fleet of Kubernetes clusters",
		Long: "towline puts modules on a Towline hub, follows their rollouts through the clusters and shows what is there.\n" +
			"Kinds: modules (mod), clusters (cl), revisions (rev), rollouts (ro), trackers (tr), objects (obj), projects, secrets, tokens, users, holds.",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.begun = true
			return cmp.Or(noneEmpty(cmd), noneNegative(cmd))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s: %w; see: %s --help", cmd.CommandPath(), err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.config, "config", "", "client configuration `FILE` (default $TOWLINE_CONFIG or ~/.config/towline/config)")
	flags.StringVar(&a.context, "use-context", "", "context of the client configuration (default its current one)")
	flags.StringVarP(&a.project, "project", "p", fleet.DefaultProject, "project of modules")
	root.AddGroup(&cobra.Group{ID: "use", Title: "Modules and clusters:"}, &cobra.Group{ID: "see", Title: "Looking closer:"},
		&cobra.Group{ID: "admin", Title: "People and settings:"})
	for group, commands := range map[string][]*cobra.Command{
		"use":   {a.applyCommand(), a.importCommand(), a.getCommand(), a.describeCommand(), a.deleteCommand(), a.rolloutCommand(), a.resyncCommand(), a.clusterCommand()},
		"see":   {a.diffCommand(), a.explainCommand(), a.treeCommand(), a.historyCommand(), a.renderCommand(), a.confirmCommand(), a.holdCommand(), a.unholdCommand(), a.eventsCommand(), a.logsCommand()},
		"admin": {a.secretCommand(), a.userCommand(), a.certificateCommand(), a.restoreCommand(), a.configCommand(), a.versionCommand()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("admin")
	root.SetCompletionCommandGroupID("admin")
	a.completeProjects(root)
	return root
}

func unknownCommand(cmd *cobra.Command, word string) error {
	var known []string
	for _, c := range cmd.Commands() {
		known = append(known, append(c.Aliases, c.Name())...)
	}
	hint := "see: " + cmd.CommandPath() + " --help"
	if near := resource.Nearest(word, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return usagef("%s has no command %q; %s", cmd.CommandPath(), word, hint)
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		}}
	c.AddCommand(commands...)
	return c
}

// exactly, atLeast and atMost check the number of arguments and say what is missing.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s; see: %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("%s takes %s; see: %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}
