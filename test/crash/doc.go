// Package crash proves the word "durable": what the plugin has acknowledged is
// never lost, whenever the power fails.
//
// The real binary is the writer. Several processes of it at once ADD, in both
// positions and again, CHECK and DEL, as a runtime calls them; then the machine
// "loses power", the file system is mounted again, and what pkg/journal reads
// is held against what was acknowledged. A call is acknowledged once its
// process has exited with success and the right output.
//
// Beside it, durable-argsctl inserts its stanzas into conflists and removes
// them again, and repairs files of libcni's cache that have been spoilt. A
// conflist is the old one or the new one, to the byte; a file that was repaired
// stays so.
//
// # What must hold
//
// Every acknowledged entry is there, whole and in its place. A call that was
// not acknowledged may have left its entry, whole or torn, or nothing; a torn
// one is reported as damaged, and nothing else suffers by it. An attachment
// whose DEL was acknowledged may be back, as it was, until its next ADD; the
// journal promises no more, since a replay is harmless. Nothing else may be
// there.
//
// # The two methods
//
// A cut is what a kernel crash is: the page cache is gone in mid-run, and the
// file system is shut down without its log being flushed (XFS_IOC_GOINGDOWN,
// which ext4 has too). It shows that nothing rests in memory when we
// acknowledge. What the disk has been given stays, so it shows nothing about
// the disk's own cache. btrfs has no such call; there the other method stands
// for it. The writers go on after a cut on the file system that it has left,
// with its torn lines and half-made directories, for several cuts.
//
// A state is what a power cut can leave of the disk. Every write and every
// flush of a short run is recorded by the disk itself, which is ours, a file
// of a FUSE server below a loop device; the acknowledgements stand in the same
// record, in order. What was written before a flush is on the medium; of what
// was written since, a cut may leave all, nothing, some writes, or some 4 KiB
// blocks of some writes. So for every point of the record such disks are
// put together, mounted and checked. That shows that the flushes are enough
// and stand where they must. A write that was on its way when a flush came
// counts as flushed, which is slightly kind.
//
// # The controls
//
// Next to the plugin, in the same cuts and states, run two writers that must
// be seen to lose: libcni's own cache, written by libcni itself, and the very
// same plugin with every flush answered by the kernel, through a seccomp
// filter, with a success that has done nothing. If they lose nothing, the
// method is blind and the test fails. Another process that flushes a file of
// its own runs beside them, as on any node: it makes ext4 and xfs commit the
// names of files whose bytes are still in memory, which leaves them
// zero-length.
//
// # The table
//
// Checked are cuts or states. Acknowledged are the entries that had to be
// found, added up over all of these; lost are those of them that are not there,
// and torn those whose file cannot be read where they were. A torn line of a
// call that was never acknowledged is no fault; it is counted because it shows
// that the power was cut in the middle of a write.
//
// # Cleaning up
//
// All of it happens in a sandbox with mounts of its own. The disk's server is
// a process of its own that does not see the file systems on top of it, so
// nothing waits for itself when either side is killed: the kernel takes down
// the mounts with the test, and the loop devices with the mounts.
//
// CRASH_BUDGET says how long all of it may take; see make crash.
package crash
