package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// errNotAvailable is the code of STATUS for "ADD would fail", CNI SPEC section 5.
const errNotAvailable uint = 50

// status answers whether an ADD could be journaled now. It is polled every few
// seconds, and writes nothing.
func (p plugin) status(args *skel.CmdArgs) error {
	s, err := p.begin(args)
	if err != nil {
		return err
	}
	if s.Layout() == stanza.Last {
		return nil // the first stanza answers for both
	}
	n, err := s.Network()
	if err == nil {
		err = n.Covered()
	}
	if err == nil {
		err = journal.Ready(s.DataDir, s.Name, s.AllowVolatile)
	}
	if err != nil {
		return types.NewError(errNotAvailable, "not ready: "+err.Error(), "")
	}
	if s.Layout() == stanza.Wrapped {
		call, err := call(s, args)
		if err != nil {
			return err
		}
		return chainError(p.runner().Status(context.Background(), n.Protected, call))
	}
	return nil
}
