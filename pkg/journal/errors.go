package journal

import "errors"

var (
	// ErrInvalidKey means that an attachment's names cannot be stored.
	ErrInvalidKey = errors.New("invalid attachment")
	// ErrUntrusted means that a directory or file of the store is not ours
	// alone. The message says which one, and how to set it right.
	ErrUntrusted = errors.New("untrusted journal")
	// ErrVolatile means that a reboot would empty the store.
	ErrVolatile = errors.New("on a file system in memory, which a reboot empties")
	// ErrLocked means that another process has held an attachment for the
	// whole of [LockTimeout].
	ErrLocked = errors.New("attachment is locked by another process")
)
