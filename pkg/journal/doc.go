// Package journal keeps, for every attachment, what its DEL will need, in a
// store that survives a crash of the machine at any instant.
//
// It promises one thing: once Append of an [Add] or [Result] entry has
// returned nil, every later reader sees that entry whole, whatever happened in
// between to the process, the kernel or the power. Everything below serves
// that sentence. The words MUST and SHOULD bind whoever writes or reads these
// files.
//
// # Files
//
// A store is one directory. It holds a directory for each network, and in it
// one file for each attachment:
//
//	<dataDir>/<network>/<containerID>@<ifname>
//
// '@' cannot occur in a container ID, so a name has exactly one reading. Names
// that begin with '.' are never an attachment's: .corrupt holds files set
// aside, .new is the file that a store without O_TMPFILE writes first, and
// .boot names the boot in which [Store.OncePerBoot] has last done its work.
//
// The journal names what root will execute, so it MUST belong to the user who
// runs the plugin: directories 0700, files 0600, no symbolic link at dataDir
// or below it. Anything else is refused with [ErrUntrusted].
//
// # Lines
//
// A file is a sequence of lines, one entry a line:
//
//	<CRC-32C of the JSON, 8 lower-case hex digits> <JSON> LF
//
// The JSON is an object without line breaks. "version" and "kind" say how to
// read the rest:
//
//	kind      more fields          durable  meaning
//	add       add                  yes      what the runtime gave on ADD
//	result    result               yes      the final result of the add before it
//	attempt   attempt              no       a replay that failed
//	replayed  -                    no       nothing before this line is owed any more
//
// A writer MUST only append, MUST write a line with one write call, and MUST
// hold an exclusive flock on the file while it does. If the file does not end
// with LF, it MUST begin with one, so that its line stands alone. It MUST NOT
// report success for an add or a result before fdatasync has returned and, for
// a new file, fsync of the directory as well.
//
// A reader MUST take every line whose checksum holds and MUST report the
// others. It MUST ignore JSON fields that it does not know. An entry of
// a version or kind that it does not know is somebody else's: it MUST be
// reported, and the file MUST stay. A file with no readable add and nothing of
// a later version SHOULD be moved to .corrupt, for people to look at.
//
// # Why a torn write is harmless
//
// A new line never touches the bytes of an earlier one, so a crash in the
// middle of a write can cost only the line that was being written, and that
// line had not been acknowledged. Where our ADD runs first, nothing else has
// run by then either. A torn line fails its checksum; the next writer starts
// on a fresh line, so it cannot swallow its successor.
//
// # Why these system calls
//
// A new file is written without a name (O_TMPFILE), then linked, then made
// durable with fdatasync, and its name with fsync of the directory: two device
// flushes on ext4 and xfs instead of the four of write, fsync, rename, fsync.
// Linking before the data is durable is sound only because a name is never
// given twice: nothing acknowledged can be replaced by something that is not.
// fsync of the file alone does not make its name durable by POSIX, even where
// a file system is kind enough to do it. A SIGKILL leaves either no name or a
// whole line. Where the file system has no O_TMPFILE, .new is written, made
// durable, and renamed while its lock shows that the name is free.
//
// A network's directory is made with mode 0500 and becomes 0700 only once
// fsync of its parent has returned. So whoever finds it 0700 knows its name to
// be durable, and whoever finds it 0500, because the maker is not done or has
// died, does the fsync itself. In the same way a file is made with mode 0700 and
// becomes 0600 once its name is durable: whoever appends to one that a dead
// process has left at 0700 makes its name durable first.
//
// Removal is not synced. After a crash a removed file may be back; replaying
// it is harmless, since a DEL is idempotent and a replay checks whom it would
// touch. An fsync that fails is never tried again on the same descriptor,
// because the kernel may have dropped the dirty pages and would then answer
// with success: the line is cut off again and the error returned.
//
// # Example
//
// The attachment eth0 of container c1 in network web, whose replay failed
// once. Lines are folded here: one that begins with two spaces goes on where
// the one above it ends.
//
//	a8095d5a {"version":1,"kind":"add","time":"2026-12-01T16:03:28Z","add":{
//	  "layout":"first","args":"SWdub3JlVW5rbm93bj0xO0s4U19QT0RfTkFNRT1jMQ==",
//	  "runtimeConfig":{"portMappings":[
//	  {"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
//	  "cniVersion":"1.0.0","path":"/opt/cni/bin",
//	  "netns":{"path":"/run/netns/c1","device":4,"inode":4026532281,
//	  "bootID":"0b7ae4f3-5d0e-4c39-9a3f-6f1d2c8be915","cookie":4097},
//	  "conflist":"eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoid2ViIiwicGx1Z2lucyI
//	  6W3sidHlwZSI6ImR1cmFibGUtYXJncyIsImNhcGFiaWxpdGllcyI6eyJwb3J0TWFwcGluZ3
//	  MiOnRydWV9fSx7InR5cGUiOiJicmlkZ2UifSx7InR5cGUiOiJwb3J0bWFwIiwiY2FwYWJpb
//	  Gl0aWVzIjp7InBvcnRNYXBwaW5ncyI6dHJ1ZX19XX0K",
//	  "chain":[{"type":"bridge"},
//	  {"capabilities":{"portMappings":true},"type":"portmap"}]}}
//	02c042c3 {"version":1,"kind":"result","time":"2026-12-01T16:03:29Z",
//	  "result":{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/16"}]}}
//	f6157dcc {"version":1,"kind":"attempt","time":"2026-12-01T17:40:11Z",
//	  "attempt":{"plugin":"portmap","error":"could not teardown ipv4 dnat"}}
package journal
