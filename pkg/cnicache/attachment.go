package cnicache

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"
)

// ID names an attachment.
type ID struct {
	Network     string
	ContainerID string
	IfName      string
}

// Name is the name of the attachment's file. Other attachments may have the
// same; see the package comment. (libcni, getCacheFilePath)
func (id ID) Name() string { return id.Network + "-" + id.ContainerID + "-" + id.IfName }

// Path is the path of the attachment's file.
func (id ID) Path(cacheDir string) string { return filepath.Join(cacheDir, resultsDir, id.Name()) }

// Attachment is what libcni caches of one.
type Attachment struct {
	ID
	// NetNS is CNI_NETNS on ADD. libcni before 1.2 neither writes nor reads it.
	NetNS string
	// Config is the bytes of the conflist as found, not of one plugin.
	Config []byte
	// Args are the pairs of CNI_ARGS, in their order.
	Args [][2]string
	// CapabilityArgs is a JSON object, or empty.
	CapabilityArgs json.RawMessage
	// Result is the final result of ADD.
	Result json.RawMessage
}

// cachedInfo is libcni's struct of that name. What is any JSON there is raw
// here, so that no number is rounded.
type cachedInfo struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns,omitempty"`
	CniArgs        [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	RawResult      map[string]json.RawMessage `json:"result,omitempty"`
}

// ParseArgs returns the pairs of which libcni has made a CNI_ARGS
// (invoke.Args.AsEnv). What follows a ';' and has no '=' belongs to the value
// before it. A value that holds both cannot be told from two pairs.
func ParseArgs(args string) [][2]string {
	var pairs [][2]string
	if args == "" {
		return nil
	}
	for piece := range strings.SplitSeq(args, ";") {
		name, value, ok := strings.Cut(piece, "=")
		if !ok && len(pairs) > 0 {
			pairs[len(pairs)-1][1] += ";" + piece
			continue
		}
		pairs = append(pairs, [2]string{name, value})
	}
	return pairs
}

// Encode returns what libcni would have written for a. It fails if libcni could
// not read that.
func (a Attachment) Encode() ([]byte, error) {
	info := cachedInfo{
		Kind:        libcni.CNICacheV1,
		ContainerID: a.ContainerID,
		Config:      a.Config,
		IfName:      a.IfName,
		NetworkName: a.Network,
		NetNS:       a.NetNS,
		CniArgs:     a.Args,
	}
	if len(a.CapabilityArgs) > 0 {
		if err := json.Unmarshal(a.CapabilityArgs, &info.CapabilityArgs); err != nil {
			return nil, fmt.Errorf("reading the capability args of %s: %w", a.Name(), err)
		}
	}
	if err := json.Unmarshal(a.Result, &info.RawResult); err != nil {
		return nil, fmt.Errorf("reading the result of %s: %w", a.Name(), err)
	}
	if info.RawResult == nil {
		return nil, fmt.Errorf("the result of %s is no JSON object", a.Name())
	}
	if _, err := create.CreateFromBytes(a.Result); err != nil {
		return nil, fmt.Errorf("reading the result of %s as libcni does: %w", a.Name(), err)
	}
	data, err := json.Marshal(info)
	if err == nil {
		err = numbers(data)
	}
	return data, err
}

// numbers returns an error if data has numbers that libcni cannot hold, since
// to it they are floats: it then takes the file for one of before 0.7.
func numbers(data []byte) error {
	return json.Unmarshal(data, &struct {
		CapabilityArgs map[string]any `json:"capabilityArgs"`
		RawResult      map[string]any `json:"result"`
	}{})
}

var (
	errNothing = errors.New("it is empty")
	errEmpty   = errors.New("it is an empty object")
)

// decode reads the content of a file as libcni does. The error says why it
// could not.
func decode(data []byte) (a *Attachment, legacy bool, err error) {
	if len(data) == 0 {
		return nil, false, errNothing
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, false, err
	}
	if len(object) == 0 {
		return nil, false, errEmpty
	}
	var info cachedInfo
	if err := errors.Join(json.Unmarshal(data, &info), numbers(data)); err != nil || info.Kind != libcni.CNICacheV1 {
		_, err := create.CreateFromBytes(data)
		return &Attachment{Result: data}, true, err
	}
	a = &Attachment{
		ID:     ID{Network: info.NetworkName, ContainerID: info.ContainerID, IfName: info.IfName},
		NetNS:  info.NetNS,
		Config: info.Config,
		Args:   info.CniArgs,
	}
	// libcni writes nothing of a result without a field.
	a.Result = json.RawMessage("{}")
	if len(info.RawResult) > 0 {
		if a.Result, err = json.Marshal(info.RawResult); err != nil {
			return nil, false, err
		}
	}
	if info.CapabilityArgs != nil {
		if a.CapabilityArgs, err = json.Marshal(info.CapabilityArgs); err != nil {
			return nil, false, err
		}
	}
	_, err = create.CreateFromBytes(a.Result)
	return a, false, err
}

// Differences returns the names of libcni's fields in which cached is not what
// a file written for a would say. CNI_ARGS are compared as a set of pairs. What
// a has none of is not compared, nor are capability args that a lacks: nobody
// but the runtime knows those that no plugin has declared.
func (a Attachment) Differences(cached Attachment) []string {
	var fields []string
	differs := func(field string, known, same bool) {
		if known && !same {
			fields = append(fields, field)
		}
	}
	differs("config", a.Config != nil, string(a.Config) == string(cached.Config))
	// libcni has written it since 1.2.
	differs("netns", a.NetNS != "" && cached.NetNS != "", a.NetNS == cached.NetNS)
	differs("cniArgs", true, slices.Equal(sorted(a.Args), sorted(cached.Args)))
	differs("capabilityArgs", len(a.CapabilityArgs) > 0, contains(cached.CapabilityArgs, a.CapabilityArgs))
	differs("result", a.Result != nil, sameJSON(a.Result, cached.Result))
	return fields
}

// sorted returns the set of pairs, as JSON can hold them.
func sorted(pairs [][2]string) [][2]string {
	pairs = slices.Clone(pairs)
	for i, pair := range pairs {
		// Each byte that is no UTF-8 becomes U+FFFD.
		pairs[i] = [2]string{string([]rune(pair[0])), string([]rune(pair[1]))}
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(pairs)
}

// contains reports whether the object all has every key of part, with the same
// value.
func contains(all, part json.RawMessage) bool {
	var have, want map[string]json.RawMessage
	if len(all) > 0 && json.Unmarshal(all, &have) != nil || json.Unmarshal(part, &want) != nil {
		return false
	}
	for key, value := range want {
		if !sameJSON(have[key], value) {
			return false
		}
	}
	return true
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
