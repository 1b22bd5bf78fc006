package cnicache

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"
)

// cacheDir is one for all: making directories is slow, and so are flushes, so
// it is in memory if possible.
func cacheDir(f *testing.F) string {
	f.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "durable-args-fuzz")
	if err != nil {
		return f.TempDir()
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// libcniOf is libcni with nothing but its cache.
func libcniOf(dir string) *libcni.CNIConfig { return libcni.NewCNIConfigWithCacheDir(nil, dir, nil) }

// Whatever a file holds: it is readable if libcni finds a result in it, other
// than the empty one of an empty object, and then says what libcni says.
func FuzzRead(f *testing.F) {
	whole, err := web.Encode()
	if err != nil {
		f.Fatal(err)
	}
	more := web
	more.Args = [][2]string{{"A", "1;2"}, {"B", "<&>"}}
	more.CapabilityArgs = json.RawMessage(`{"portMappings":[{"hostPort":8080}],"n":18446744073709551615}`)
	full, err := more.Encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(whole), string(full), string(whole[:len(whole)-1]), string(whole) + "\x00", result100, `{"ip4": {"ip": "10.88.0.2/16"}}`,
		`{"kind":"cniCacheV2","result":{}}`, `{"kind":"cniCacheV1"}`, `{"kind":"cniCacheV1","result":null,"cniArgs":[["A"]]}`,
		`{"kind":"cniCacheV1","capabilityArgs":{},"result":{"cniVersion":"1.0.0","ips":[]},"config":"e30="}`,
		`{"kind":"cniCacheV1","capabilityArgs":{"n":1e400},"result":` + result100 + `}`, // libcni cannot hold the number
		`{"kind":"cniCacheV1","KIND":"x","result":{"cniVersion":"9.0.0"}}`, `{}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	dir := cacheDir(f)
	if err := os.Mkdir(filepath.Join(dir, "results"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(web.Path(dir), data, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := Read(dir, web.ID)
		if err != nil || file.State == Missing || (file.State == Readable) != (file.Attachment != nil) || (file.State == Damaged) != (file.Why != nil) {
			t.Fatalf("Read of %q = %+v, %v", data, file, err)
		}
		seen := 0
		if err := All(dir, func(path string, again File, err error) {
			seen++
			if err != nil || path != web.Path(dir) || again.State != file.State || !reflect.DeepEqual(again.Attachment, file.Attachment) {
				t.Errorf("All of %q = %s %+v, %v; Read = %+v", data, path, again, err, file)
			}
		}); err != nil || seen != 1 {
			t.Errorf("All = %v, %d times", err, seen)
		}

		// libcni converts the result to the version that it is asked for.
		version := "1.0.0"
		if file.State == Readable {
			result, err := create.CreateFromBytes(file.Attachment.Result)
			if err != nil {
				t.Fatalf("the result of %q is %s: %v", data, file.Attachment.Result, err)
			}
			version = result.Version()
		}
		list := &libcni.NetworkConfigList{Name: web.Network, CNIVersion: version}
		rt := &libcni.RuntimeConf{ContainerID: web.ContainerID, IfName: web.IfName}
		theirs, err := libcniOf(dir).GetNetworkListCachedResult(list, rt)
		if file.State != Readable {
			var object map[string]json.RawMessage
			if err == nil && (json.Unmarshal(data, &object) != nil || len(object) > 0) {
				t.Errorf("libcni reads %q, which is %s here: %v", data, file.State, file.Why)
			}
			return
		}
		if err != nil {
			t.Fatalf("libcni does not read %q: %v", data, err)
		}
		a := *file.Attachment
		if ours, err := create.CreateFromBytes(a.Result); err != nil || !reflect.DeepEqual(ours, theirs) {
			t.Errorf("libcni reads the result %+v of %q, not %+v, %v", theirs, data, ours, err)
		}
		if file.Legacy {
			return
		}
		if fields := a.Differences(a); fields != nil {
			t.Errorf("what is read of %q differs from itself in %v", data, fields)
		}
		if a.IfName == "" || a.Network == "" {
			return // libcni does not list it
		}
		attachments, err := libcniOf(dir).GetCachedAttachments("")
		if err != nil || len(attachments) != 1 || !same(a, *attachments[0]) {
			t.Errorf("libcni lists %+v of %q, not %+v (%v)", attachments, data, a, err)
		}
	})
}

// same compares an attachment with libcni's. There, a number is a float.
func same(a Attachment, theirs libcni.NetworkAttachment) bool {
	capabilityArgs, err := json.Marshal(theirs.CapabilityArgs)
	return err == nil && a.ID == ID{theirs.Network, theirs.ContainerID, theirs.IfName} && a.NetNS == theirs.NetNS &&
		string(a.Config) == string(theirs.Config) && reflect.DeepEqual(sorted(a.Args), sorted(theirs.CniArgs)) &&
		(len(a.CapabilityArgs) == 0 && theirs.CapabilityArgs == nil || sameJSON(a.CapabilityArgs, capabilityArgs))
}

// What is written for an attachment is read as that attachment, by us and by
// libcni, and encoding what was read gives the same again. What is refused is
// not written.
func FuzzWrite(f *testing.F) {
	f.Add("web", "c1", "eth0", "/run/netns/c1", []byte(conflist), "IgnoreUnknown=1;A=1;2;B=\xff", []byte(`{"mac":"02:00:00:00:00:01","n":1e21}`), []byte(result100))
	f.Add("a-b", "c", "eth0", "", []byte(nil), "", []byte(nil), []byte(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.88.0.2/16"}]}`))
	f.Add("web", "../c1", "eth0", "", []byte("{}"), ";;=", []byte(`{}`), []byte(`{"cniVersion":"0.2.0"}`))
	f.Add("web", "c1", "", "", []byte("\x00"), "A", []byte(`[]`), []byte(`{}`))
	f.Add("web", "c1", "eth0", "", []byte("{}"), "", []byte(`{"n":1e400}`), []byte(result100))
	f.Add("web", "c1", "eth0", "", []byte("{}"), "", []byte(`null`), []byte(`null`))
	f.Add("web", "c1", "eth0", "", []byte("{}"), "", []byte(`{"a":{"b":null}}`), []byte(`{"cniVersion":"9.0.0"}`))
	dir := cacheDir(f)
	f.Fuzz(func(t *testing.T, network, containerID, ifName, netns string, config []byte, args string, capabilityArgs, result []byte) {
		a := Attachment{
			ID: ID{network, containerID, ifName}, NetNS: netns, Config: config,
			Args: ParseArgs(args), CapabilityArgs: capabilityArgs, Result: result,
		}
		for _, text := range []string{network, containerID, ifName, netns} {
			if strings.ToValidUTF8(text, "") != text {
				return // no JSON holds it, and neither runtimes nor CNI have such names
			}
		}
		if err := os.RemoveAll(filepath.Join(dir, "results")); err != nil {
			t.Fatal(err)
		}
		encoded, encodeErr := a.Encode()
		writeErr := Write(dir, a)
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 1 {
			t.Errorf("beside results there are %v, %v", entries, err)
		}
		if writeErr != nil {
			files, _ := os.ReadDir(filepath.Join(dir, "results"))
			if len(files) > 0 {
				t.Errorf("Write fails with %v, and leaves %v", writeErr, files)
			}
			return
		}
		file, err := Read(dir, a.ID)
		if err != nil || encodeErr != nil || file.State != Readable || file.Legacy || file.Foreign(a.ID) {
			t.Fatalf("%+v is read as %+v, %v", a, file, err)
		}
		if fields := a.Differences(*file.Attachment); fields != nil {
			t.Errorf("%+v is read as %+v, which differs in %v", a, *file.Attachment, fields)
		}
		if again, err := file.Attachment.Encode(); err != nil || !sameJSON(again, encoded) {
			t.Errorf("%s becomes %s, %v", encoded, again, err)
		}
		attachments, err := libcniOf(dir).GetCachedAttachments("")
		if err != nil || len(attachments) != 1 || !same(*file.Attachment, *attachments[0]) {
			t.Errorf("libcni lists %+v, not %+v (%v)", attachments, *file.Attachment, err)
		}
	})
}
