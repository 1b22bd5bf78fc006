// Command recorder is a chained CNI plugin for tests. It writes down every
// call, and does what its stanza tells it to:
//
//	label            its name in the record (its type, if absent)
//	failWhile        a file: while it exists, failOn fails
//	failOn           the commands that fail then (["DEL"], if absent)
//	error            the *types.Error that it prints then
//	needsArgs        DEL fails without CNI_ARGS
//	rejectPrevResult ADD fails if there is a prevResult, as ipvlan's without
//	                 a master, and loopback's
//	result           what ADD prints, instead of prevResult
//	sleepWhile       a file: while it exists, every call waits
//
// The record is the file named by $RECORDER: a line for each call, with the
// command, the label and what came in. $RECORDER.stdin has each call's standard
// input, byte for byte, a line each.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

type conf struct {
	CNIVersion       string          `json:"cniVersion"`
	Label            string          `json:"label"`
	FailWhile        string          `json:"failWhile"`
	FailOn           []string        `json:"failOn"`
	Error            *types.Error    `json:"error"`
	NeedsArgs        bool            `json:"needsArgs"`
	RejectPrevResult bool            `json:"rejectPrevResult"`
	Result           json.RawMessage `json:"result"`
	SleepWhile       string          `json:"sleepWhile"`
	RuntimeConfig    json.RawMessage `json:"runtimeConfig"`
	PrevResult       json.RawMessage `json:"prevResult"`
}

func main() {
	if err := run(os.Getenv("CNI_COMMAND")); err != nil {
		_ = err.Print()
		os.Exit(1)
	}
}

func run(command string) *types.Error {
	if command == "VERSION" {
		_ = version.All.Encode(os.Stdout)
		return nil
	}
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fail(err)
	}
	c := conf{Label: filepath.Base(os.Args[0]), FailOn: []string{"DEL"}}
	if err := json.Unmarshal(stdin, &c); err != nil {
		return fail(err)
	}
	line := fmt.Sprintf("%s %s container=%s ifname=%s netns=%s args=%s caps=%s prevResult=%s\n", command, c.Label,
		os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME"), os.Getenv("CNI_NETNS"), os.Getenv("CNI_ARGS"), c.RuntimeConfig, c.PrevResult)
	if err := appendTo(os.Getenv("RECORDER"), []byte(line)); err != nil {
		return fail(err)
	}
	if err := appendTo(os.Getenv("RECORDER")+".stdin", append(bytes.TrimSpace(stdin), '\n')); err != nil {
		return fail(err)
	}
	for c.SleepWhile != "" && exists(c.SleepWhile) {
		time.Sleep(10 * time.Millisecond)
	}
	switch {
	case exists(c.FailWhile) && slices.Contains(c.FailOn, command):
		if c.Error == nil {
			c.Error = types.NewError(types.ErrInternal, "recorder fails on demand", "")
		}
		fmt.Fprintln(os.Stderr, "recorder: its own words on stderr")
		return c.Error
	case c.NeedsArgs && command == "DEL" && os.Getenv("CNI_ARGS") == "":
		return types.NewError(types.ErrInternal, "recorder needs CNI_ARGS", "")
	case command == "ADD" && c.RejectPrevResult && c.PrevResult != nil:
		return types.NewError(types.ErrInternal, "recorder must be first in the chain", "")
	case command == "ADD" && c.Result != nil:
		_, err = os.Stdout.Write(c.Result)
	case command == "ADD" && c.PrevResult != nil:
		_, err = os.Stdout.Write(c.PrevResult)
	case command == "ADD":
		_, err = fmt.Printf("{\"cniVersion\": %q}", c.CNIVersion)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

func fail(err error) *types.Error { return types.NewError(types.ErrInternal, err.Error(), "") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func appendTo(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(b)
	return err
}
