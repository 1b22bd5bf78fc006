// Command durable-argsctl shows what durable-args has journaled on a node,
// finds out what is wrong, and sets it right. It talks to no API server.
//
// It exits with 0 if all is fine, with 1 after a finding or a failure, and with
// 2 if it was called in a wrong way.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the Makefile.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	err := newRoot(look).ExecuteContext(ctx)
	switch {
	case err == nil:
	case errors.Is(err, errFinding):
		// The findings have been printed.
		os.Exit(1)
	case errors.As(err, new(*usageError)):
		fmt.Fprintf(os.Stderr, "durable-argsctl: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "durable-argsctl: %v\n", err)
		os.Exit(1)
	}
}
