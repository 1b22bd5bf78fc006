package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// ErrMissing means that a plugin's binary is nowhere in CNI_PATH.
var ErrMissing = errors.New("no such plugin in CNI_PATH")

// Runner calls plugins. Its zero value is not usable: Stderr must be set.
type Runner struct {
	// Stderr gets what plugins write to theirs.
	Stderr io.Writer
}

// Del calls p with DEL for c. The error wraps [ErrMissing] if there is no such
// plugin, and otherwise is the plugin's own *types.Error.
func (r Runner) Del(ctx context.Context, p Plugin, c Call) error {
	return r.withoutResult(ctx, "DEL", p, c)
}

func (r Runner) withoutResult(ctx context.Context, command string, p Plugin, c Call) error {
	path, err := r.find(p, c)
	if err != nil {
		return err
	}
	request, err := c.Request(p)
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, path, request, c.environment(command), r.exec())
}

// find looks for p's binary.
func (r Runner) find(p Plugin, c Call) (string, error) {
	path, err := invoke.FindInPath(p.Type, searchPath(c.Path))
	if err != nil {
		return "", fmt.Errorf("%w: %q in %s", ErrMissing, p.Type, c.Path)
	}
	return path, nil
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

func (r Runner) exec() invoke.Exec {
	return &boundExec{RawExec: invoke.RawExec{Stderr: r.Stderr}}
}

// boundExec is invoke.RawExec whose plugins die with this process. A runtime
// that has run out of patience kills the plugin that it called; what that
// plugin called in turn must not run on behind the runtime's back, when it has
// already begun to clean up.
type boundExec struct {
	invoke.RawExec
	version.PluginDecoder
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
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		switch {
		case err == nil:
			return stdout.Bytes(), nil
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
