package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// ErrMissing means that a plugin's binary is nowhere in CNI_PATH.
var ErrMissing = errors.New("no such plugin in CNI_PATH")

// Runner calls plugins. Their errors are theirs, *types.Error, or wrap
// [ErrMissing] if there is no such plugin.
type Runner struct {
	// Stderr gets what plugins write to theirs.
	Stderr io.Writer
	// OwnGroup keeps from plugins the signals that a terminal sends to whoever
	// is in the foreground: Ctrl-C would break them off half-way.
	OwnGroup bool
}

// Add runs ADD down plugins as libcni's AddNetworkList does: each gets the
// result of the one before it, the first c.PrevResult. It stops at the first
// error. It returns the final result as libcni would keep it, and what the
// last plugin printed, byte for byte.
func (r Runner) Add(ctx context.Context, plugins []Plugin, c Call) (result json.RawMessage, printed []byte, err error) {
	for _, p := range plugins {
		path, request, err := r.prepare(p, c.Request, c.Path)
		if err != nil {
			return nil, nil, err
		}
		exec := r.exec()
		typed, err := invoke.ExecPluginWithResult(ctx, path, request, c.environment("ADD"), exec)
		if err != nil {
			return nil, nil, err
		}
		if c.PrevResult, err = json.Marshal(typed); err != nil {
			return nil, nil, fmt.Errorf("reading the result of plugin %s: %w", p.Type, err)
		}
		printed = exec.printed
	}
	return c.PrevResult, printed, nil
}

// Del calls p with DEL for c.
func (r Runner) Del(ctx context.Context, p Plugin, c Call) error {
	return r.withoutResult(ctx, "DEL", p, c.Request, c)
}

// Check calls plugins with CHECK for c, in order, until one fails.
func (r Runner) Check(ctx context.Context, plugins []Plugin, c Call) error {
	for _, p := range plugins {
		if err := r.withoutResult(ctx, "CHECK", p, c.Request, c); err != nil {
			return err
		}
	}
	return nil
}

// Status calls plugins with STATUS, in order, until one fails: libcni's
// GetStatusNetworkList returns one clean error.
func (r Runner) Status(ctx context.Context, plugins []Plugin, c Call) error {
	for _, p := range plugins {
		if err := r.withoutResult(ctx, "STATUS", p, c.Request, c); err != nil {
			return err
		}
	}
	return nil
}

// GC calls every one of plugins with GC and returns their errors joined, as
// libcni's GCNetworkList does. lists are the keys of the request that name the
// valid attachments, as they came.
func (r Runner) GC(ctx context.Context, plugins []Plugin, c Call, lists map[string]json.RawMessage) error {
	var errs []error
	for _, p := range plugins {
		request := func(p Plugin) ([]byte, error) { return c.request(p, lists) }
		if err := r.withoutResult(ctx, "GC", p, request, c); err != nil {
			errs = append(errs, fmt.Errorf("GC of plugin %s: %w", p.Type, err))
		}
	}
	return errors.Join(errs...)
}

func (r Runner) withoutResult(ctx context.Context, command string, p Plugin, request func(Plugin) ([]byte, error), c Call) error {
	path, stdin, err := r.prepare(p, request, c.Path)
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, path, stdin, c.environment(command), r.exec())
}

// prepare finds p's binary and derives its request.
func (r Runner) prepare(p Plugin, request func(Plugin) ([]byte, error), cniPath string) (path string, stdin []byte, err error) {
	if path, err = invoke.FindInPath(p.Type, strings.Split(cniPath, string(os.PathListSeparator))); err != nil {
		return "", nil, fmt.Errorf("%w: %q in %s", ErrMissing, p.Type, cniPath)
	}
	stdin, err = request(p)
	return path, stdin, err
}

func (c Call) environment(command string) *invoke.Args {
	return &invoke.Args{
		Command:       command,
		ContainerID:   c.ContainerID,
		NetNS:         c.NetNS,
		PluginArgsStr: c.Args,
		IfName:        c.IfName,
		Path:          c.Path,
	}
}

func (r Runner) exec() *boundExec {
	return &boundExec{RawExec: invoke.RawExec{Stderr: r.Stderr}, ownGroup: r.OwnGroup}
}

// boundExec is invoke.RawExec whose plugins die with this process. A runtime
// that has run out of patience kills the plugin that it called; what that
// plugin called in turn must not run on behind the runtime's back, when it has
// already begun to clean up.
type boundExec struct {
	invoke.RawExec
	version.PluginDecoder

	ownGroup bool
	printed  []byte // the standard output of the last call
}

func (e *boundExec) ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error) {
	// The kernel sends the signal when the thread that started the child
	// ends, so this one has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for try := 1; ; try++ {
		var stdout bytes.Buffer
		cmd := exec.CommandContext(ctx, pluginPath)
		cmd.Env = environ
		cmd.Stdin = bytes.NewReader(stdin)
		cmd.Stdout = &stdout
		cmd.Stderr = e.Stderr
		cmd.WaitDelay = time.Second // for what a killed plugin leaves behind
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: e.ownGroup}
		err := cmd.Run()
		switch {
		case err == nil:
			e.printed = stdout.Bytes()
			return e.printed, nil
		case errors.Is(err, syscall.ETXTBSY) && try <= 5:
			// It is being installed just now.
			time.Sleep(time.Second)
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w: %s", ErrMissing, pluginPath)
		default:
			return nil, pluginError(err, stdout.Bytes())
		}
	}
}

// pluginError returns the error that a plugin printed (SPEC, "Error"), or says
// how it ended if it printed none.
func pluginError(err error, stdout []byte) *types.Error {
	var printed types.Error
	switch jsonErr := json.Unmarshal(stdout, &printed); {
	case len(stdout) == 0:
		return types.NewError(types.ErrUnknown, fmt.Sprintf("plugin printed no error: %v", err), "")
	case jsonErr != nil:
		return types.NewError(types.ErrUnknown, fmt.Sprintf("plugin printed an error that cannot be read: %v: %v", err, jsonErr), string(stdout))
	}
	return &printed
}

var _ invoke.Exec = (*boundExec)(nil)
