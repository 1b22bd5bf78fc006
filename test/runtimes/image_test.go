package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
)

const page80 = "a page\n"

// serve is the command of a container that answers on port 80.
var serve = []string{"/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"}

// archive is an image with one layer, made here since there may be no registry:
// busybox and a page.
type archive struct {
	tag     string
	command []string
}

// build writes the image as docker save does.
func (n *node) build(a archive) string {
	busybox, err := exec.LookPath("busybox")
	n.must(err)
	program, err := os.ReadFile(busybox)
	n.must(err)
	layer := n.tar(map[string][]byte{"bin/busybox": program, "www/index.html": []byte(page80)})
	config, err := json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config":  map[string]any{"Env": []string{"PATH=/bin"}, "Entrypoint": a.command},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		"history": []any{map[string]any{"created": "1970-01-01T00:00:00Z"}},
	})
	n.must(err)
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{a.tag}, "Layers": []string{"layer.tar"}}})
	n.must(err)
	file := filepath.Join(n.dir, "image.tar")
	n.must(os.WriteFile(file, n.tar(map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": layer}), 0o644))
	return file
}

func (n *node) tar(files map[string][]byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		n.must(w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}))
		_, err := w.Write(content)
		n.must(err)
	}
	n.must(w.Close())
	return out.Bytes()
}
