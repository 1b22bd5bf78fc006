// Package netnsid tells whether a path still names the network namespace that
// it named earlier.
//
// A path alone does not: runtimes reuse names under /run/netns, and the kernel
// reuses process IDs and the inode numbers of namespaces. A DEL that is given
// a recycled path takes down another container's interface, or the host's
// (kubernetes/kubernetes#100648). So an identity also has the device and inode
// of the namespace, the boot in which it was taken and, where the kernel has
// it (Linux 5.14, SO_NETNS_COOKIE), a number that the kernel never gives twice
// within a boot.
package netnsid

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// errNoNamespace is what a path gives whose namespace has been unmounted.
var errNoNamespace = errors.New("not a namespace")

// ID is the identity of a network namespace.
type ID struct {
	// Path is empty if nobody knows which namespace it was: it then counts as
	// alive until the next boot.
	Path   string
	Device uint64
	Inode  uint64
	BootID string
	// Cookie is 0 where the kernel has none.
	Cookie uint64
}

// Of takes the identity of the namespace at path. It fails if path does not
// name one.
func Of(path string) (ID, error) {
	id, err := open(path, func(ns netns.NsHandle) (ID, error) {
		id := ID{Path: path}
		var err error
		if id.Device, id.Inode, err = stat(ns); err != nil {
			return ID{}, err
		}
		if id.BootID, err = BootID(); err != nil {
			return ID{}, err
		}
		id.Cookie, err = cookie(ns)
		return id, err
	})
	if err != nil {
		return ID{}, fmt.Errorf("taking the identity of network namespace %s: %w", path, err)
	}
	return id, nil
}

// Alive reports whether the path still names the very namespace that id was
// taken of. An error means that this cannot be told: whoever would act on a
// dead namespace must then leave it alone.
func (id ID) Alive() (bool, error) {
	boot, err := BootID()
	if err != nil {
		return false, err
	}
	if boot != id.BootID {
		return false, nil
	}
	if id.Path == "" {
		return true, nil
	}
	now, err := Of(id.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, errNoNamespace):
		return false, nil
	case err != nil:
		return false, err
	}
	return now == id, nil
}

// Find returns the first of paths that names the very namespace that id was
// taken of, empty if none does. A plugin may be sent there: the namespace is
// alive and is neither this process's own nor that of the host's init.
func (id ID) Find(paths ...string) string {
	for _, path := range paths {
		id.Path = path
		alive, err := id.Alive()
		if err == nil && alive && !Own(path) && !same(path, "/proc/1/ns/net") {
			return path
		}
	}
	return ""
}

// Own reports whether path names this process's own network namespace.
func Own(path string) bool { return same(path, "/proc/self/ns/net") }

// BootID returns the kernel's identity of the running boot.
func BootID() (string, error) { return bootID() }

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

func same(a, b string) bool {
	eq, err := open(a, func(x netns.NsHandle) (bool, error) {
		return open(b, func(y netns.NsHandle) (bool, error) { return x.Equal(y), nil })
	})
	return err == nil && eq
}

func open[T any](path string, f func(netns.NsHandle) (T, error)) (T, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		var none T
		return none, err
	}
	defer ns.Close()
	return f(ns)
}

func stat(ns netns.NsHandle) (dev, ino uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(ns), &fs); err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return 0, 0, err
	}
	// Old kernels keep namespaces on proc's own file system.
	if fs.Type != unix.NSFS_MAGIC && fs.Type != unix.PROC_SUPER_MAGIC {
		return 0, 0, errNoNamespace
	}
	return uint64(st.Dev), st.Ino, nil
}

// cookie asks the kernel for the cookie of ns, by way of a socket made in it.
func cookie(ns netns.NsHandle) (uint64, error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return 0, err
	}
	defer own.Close()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if back := netns.Set(own); back != nil {
		// The thread stays locked, so that nothing else ever runs on it.
		return 0, back
	}
	runtime.UnlockOSThread()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == unix.ENOPROTOOPT {
		return 0, nil
	}
	return c, err
}
