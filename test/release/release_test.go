// Package release tests what make release makes.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	version = "v0.0.0-test"
	// epoch is the time that the files of a release have here.
	epoch = "1700000000"
)

// machines are the architectures of a release.
var machines = map[string]elf.Machine{
	"amd64":   elf.EM_X86_64,
	"arm64":   elf.EM_AARCH64,
	"ppc64le": elf.EM_PPC64,
	"riscv64": elf.EM_RISCV,
	"s390x":   elf.EM_S390,
}

// TestReleaseIsTheSameBytesWhereverItIsBuilt builds two copies of the tree, the
// second with an empty build cache, and then looks into the archives.
func TestReleaseIsTheSameBytesWhereverItIsBuilt(t *testing.T) {
	t.Parallel()
	full := os.Getenv("RELEASE") == "full"
	arches := []string{"amd64", "s390x"}
	if full {
		arches = []string{"amd64", "arm64", "ppc64le", "riscv64", "s390x"}
	} else {
		t.Log("SKIPPED: arm64, ppc64le and riscv64, and a second build of the SBOM tool; RELEASE=full builds them")
	}

	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "a", "longer", "path")
	copyTree(t, one)
	build(t, one, arches)
	copyTree(t, two)
	if !full {
		// As if built there: it is newer than what it is built from.
		copyFile(t, filepath.Join(one, "bin/cyclonedx-gomod"), filepath.Join(two, "bin/cyclonedx-gomod"))
	}
	build(t, two, arches, "GOCACHE="+t.TempDir())

	names := []string{"SHA256SUMS"}
	for _, arch := range arches {
		names = append(names, fmt.Sprintf("durable-args-linux-%s-%s.tgz", arch, version))
	}
	for _, dir := range []string{one, two} {
		var found []string
		for _, file := range list(t, filepath.Join(dir, "bin/release")) {
			found = append(found, filepath.Base(file))
		}
		if !slices.Equal(found, names) {
			t.Errorf("bin/release holds %q, want %q", found, names)
		}
	}
	var sums strings.Builder
	for i, name := range names[1:] {
		first, second := read(t, filepath.Join(one, "bin/release", name)), read(t, filepath.Join(two, "bin/release", name))
		if !bytes.Equal(first, second) {
			t.Errorf("%s differs between two builds: %s", name, difference(t, first, second))
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(first), name)
		checkArchive(t, arches[i], unpack(t, first))
	}
	if got := string(read(t, filepath.Join(one, "bin/release/SHA256SUMS"))); got != sums.String() {
		t.Errorf("SHA256SUMS says\n%swant\n%s", got, sums.String())
	}
}

// checkArchive looks at what an operator would unpack.
func checkArchive(t *testing.T, arch string, files map[string]file) {
	for _, name := range []string{"./LICENSE", "./README.md", "./conf-examples/first-last.conflist"} {
		if _, ok := files[name]; !ok {
			t.Errorf("%s: no %s", arch, name)
		}
	}
	for name, f := range files {
		h := f.header
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || fmt.Sprint(h.ModTime.Unix()) != epoch {
			t.Errorf("%s: %s belongs to %d/%d %q/%q and is of %d, want root and %s", arch, name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime.Unix(), epoch)
		}
	}
	for _, name := range []string{"./durable-args", "./durable-argsctl"} {
		f, ok := files[name]
		if !ok {
			t.Errorf("%s: no %s", arch, name)
			continue
		}
		if f.header.Mode != 0o755 {
			t.Errorf("%s: %s has mode %o, want 755", arch, name, f.header.Mode)
		}
		checkProgram(t, arch, name, f.content)
		checkBill(t, arch+": "+name, f.content, files[name+".cdx.json"].content)
		if arch == runtime.GOARCH {
			checkVersion(t, name, f.content)
		}
	}
}

// checkProgram makes sure that a program is for its architecture, and needs
// nothing of the machine that runs it.
func checkProgram(t *testing.T, arch, name string, content []byte) {
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Errorf("%s: %s: %v", arch, name, err)
		return
	}
	if program.Machine != machines[arch] {
		t.Errorf("%s: %s is for %v, want %v", arch, name, program.Machine, machines[arch])
	}
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
			t.Errorf("%s: %s has a %v segment, so it is not static", arch, name, segment.Type)
		}
	}
	if here, err := filepath.Abs("../.."); err != nil || bytes.Contains(content, []byte(here)) || bytes.Contains(content, []byte(os.TempDir()+"/Test")) {
		t.Errorf("%s: %s names a directory of the machine that built it (%v)", arch, name, err)
	}
}

// checkBill compares the bill of materials with the modules that Go has noted
// in the program.
func checkBill(t *testing.T, name string, program, bill []byte) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	want := []string{"std " + info.GoVersion}
	for _, module := range info.Deps {
		want = append(want, module.Path+" "+module.Version)
	}
	var bom struct {
		BOMFormat    string
		SerialNumber string
		Metadata     struct {
			Timestamp string
			Component struct{ Version string }
		}
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(bill, &bom); err != nil {
		t.Errorf("%s: bill of materials: %v", name, err)
		return
	}
	var got []string
	for _, c := range bom.Components {
		got = append(got, c.Name+" "+c.Version)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: the bill of materials lists %q, Go says %q", name, got, want)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Version != version || bom.SerialNumber != "" || bom.Metadata.Timestamp != "" {
		t.Errorf("%s: bill of materials: format %q, version %q, serial number %q, timestamp %q", name,
			bom.BOMFormat, bom.Metadata.Component.Version, bom.SerialNumber, bom.Metadata.Timestamp)
	}
}

// checkVersion runs the program.
func checkVersion(t *testing.T, name string, content []byte) {
	path := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	if strings.HasSuffix(name, "ctl") {
		cmd.Args = append(cmd.Args, "--version")
	}
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), version) {
		t.Errorf("%s does not tell its version: %v\n%s", name, err, out)
	}
}

// copyTree copies what git knows or would take in.
func copyTree(t *testing.T, to string) {
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-c", "safe.directory="+top, "-C", top,
		"ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if _, err := os.Stat(filepath.Join(top, name)); err == nil { // it may be deleted, and not yet committed
			copyFile(t, filepath.Join(top, name), filepath.Join(to, name))
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, read(t, from), info.Mode().Perm()); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, dir string, arches []string, env ...string) {
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "release",
		"VERSION="+version, "SOURCE_DATE_EPOCH="+epoch, "ARCHES="+strings.Join(arches, " "))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, "MAKEFLAGS=", "MAKELEVEL=")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}
}

// A file is one of an archive.
type file struct {
	header  *tar.Header
	content []byte
}

func unpack(t *testing.T, archive []byte) map[string]file {
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]file)
	for r := tar.NewReader(plain); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = file{header, content}
	}
}

// difference names the files that differ, or says that only the wrapping does.
func difference(t *testing.T, one, two []byte) string {
	var names []string
	other := unpack(t, two)
	for name, f := range unpack(t, one) {
		if !bytes.Equal(f.content, other[name].content) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "not in what the files hold"
	}
	return strings.Join(names, ", ")
}

func list(t *testing.T, dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func read(t *testing.T, path string) []byte {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
