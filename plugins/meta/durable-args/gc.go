package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// The keys under which GC names the valid attachments. The first is the
// specification's; libcni sends both (containernetworking/cni#1101).
const (
	validAttachmentsKey = "cni.dev/valid-attachments"
	attachmentsKey      = "cni.dev/attachments"
)

// gc replays what the journal holds of attachments that are neither valid nor
// alive. It goes on after an error, and returns all of them.
func (p plugin) gc(args *skel.CmdArgs) error {
	s, err := p.begin(args)
	if err != nil {
		return err
	}
	if s.Layout() == stanza.Last {
		return nil // the first stanza does it
	}
	valid, err := validAttachments(s)
	if err != nil {
		return err
	}
	code := types.ErrTryAgainLater
	err = p.sweep(s, valid, args)
	if s.Layout() == stanza.Wrapped {
		gcErr := p.gcWrapped(s, args)
		var own *types.Error
		if err == nil && errors.As(gcErr, &own) {
			code = own.Code
		}
		err = errors.Join(err, gcErr)
	}
	if err != nil {
		// Not wrapped: skel would show the runtime one of them only.
		return types.NewError(code, err.Error(), "")
	}
	return nil
}

func (p plugin) sweep(s *stanza.Stanza, valid map[journal.Key]bool, args *skel.CmdArgs) error {
	store, err := journal.Open(s.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the journal in dataDir %s: %w", s.DataDir, err)
	}
	defer store.Close()
	isValid := func(k journal.Key) bool { return valid[k] }
	return p.replayer(s, store).Sweep(context.Background(), s.Name, isValid, chain.Call{Path: args.Path})
}

func (p plugin) gcWrapped(s *stanza.Stanza, args *skel.CmdArgs) error {
	n, err := s.Nested()
	if err != nil {
		return err
	}
	call, err := call(s, args)
	if err != nil {
		return err
	}
	lists := make(map[string]json.RawMessage)
	if s.ValidAttachments != nil {
		lists[validAttachmentsKey] = s.ValidAttachments
	}
	if s.Attachments != nil {
		lists[attachmentsKey] = s.Attachments
	}
	return p.runner().GC(context.Background(), n.Protected, call, lists)
}

// validAttachments returns the attachments that the runtime says it knows. Its error is a
// *types.Error.
func validAttachments(s *stanza.Stanza) (map[journal.Key]bool, error) {
	valid := make(map[journal.Key]bool)
	for key, list := range map[string]json.RawMessage{validAttachmentsKey: s.ValidAttachments, attachmentsKey: s.Attachments} {
		if list == nil || key == attachmentsKey && bytes.Equal(list, s.ValidAttachments) {
			continue // libcni sends the same list twice
		}
		var attachments []types.GCAttachment
		if err := json.Unmarshal(list, &attachments); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading %s: %v; nothing has been collected", key, err), "")
		}
		for _, a := range attachments {
			valid[journal.Key{Network: s.Name, ContainerID: a.ContainerID, IfName: a.IfName}] = true
		}
	}
	return valid, nil
}
