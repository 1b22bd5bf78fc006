package main

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// It would be journaled, and no DEL could read it.
func TestCapabilityArgsOfAnotherShapeAreNotJournaled(t *testing.T) {
	r := newRig(t)
	r.begin(t, []byte(`{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"durable-args"},{"type":"cat"}]}`))
	for _, runtimeConfig := range []string{`[1]`, `"x"`, `5`, `true`} {
		s, req := r.request(t, []byte(`{"type":"durable-args","name":"web","cniVersion":"1.1.0","runtimeConfig":`+runtimeConfig+`}`), "")
		_, err := r.call(t, plugin.add, s, req)
		var typed *types.Error
		if !errors.As(err, &typed) || typed.Code != types.ErrDecodingFailure {
			t.Errorf("ADD with %s: %v", runtimeConfig, err)
		}
		if _, err := r.call(t, plugin.check, s, req); err != nil {
			t.Errorf("CHECK with %s: %v", runtimeConfig, err)
		}
		if left := r.entries(t); len(left) > 0 {
			t.Errorf("with %s, it is journaled: %v", runtimeConfig, left)
		}
	}
}
