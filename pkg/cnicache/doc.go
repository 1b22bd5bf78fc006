// Package cnicache reads, writes and removes the files in which libcni caches,
// for every attachment, what its DEL will need.
//
// libcni writes such a file in place and without fsync, after the last plugin
// of ADD has returned (libcni/api.go, cacheAdd). A crash of the machine leaves
// it missing, zero-length, filled with NULs or cut short. libcni before 1.2 then
// fails every DEL before it calls a plugin; later ones call the plugins without
// prevResult.
//
// # Names
//
// The file of an attachment is
//
//	<cacheDir>/results/<network>-<containerID>-<ifname>
//
// and this name may have several readings: a-b, c and a, b-c have the same one.
// This package does not know which attachments there are. Who does has to leave
// alone a name that several of them claim.
//
// # What is read
//
// A file is [Readable] if any libcni reads it: one of kind cniCacheV1 whose
// result it understands (getCachedResult), or a bare result, which libcni wrote
// until 0.7 (getLegacyCachedResult). All else is [Damaged], and so are "{}" and
// "null": libcni takes them for an empty result, which no libcni has written.
// Symbolic links are not followed, neither at results nor at a file in it. That
// cacheDir itself may be one is the operator's choice, which libcni follows too.
//
// # What is written
//
// [Write] gives a file the content that libcni would have given it. The content
// is made durable under a temporary name and only then renamed: a file system
// may make a rename durable before the data, and after a crash the name would
// then stand for an empty file, which is the very fault that is being repaired.
// Last, the directory is made durable, since by POSIX fsync of a file says
// nothing about its name.
//
// The temporary file stands in cacheDir, beside results: libcni's
// GetCachedAttachments reads every file in results, whatever its name, and
// would take it for a second attachment.
//
// Not promised: that nobody sees the old content for as long as Write runs, and
// that a write of libcni's own at the same instant wins. Both would have written
// the same. A temporary file that a crash has left is removed by the next Write
// or [Sweep]. A removal is not made durable: after a crash the file may be back.
package cnicache
