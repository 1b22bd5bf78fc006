package main

import "time"

const (
	backoffLeast = time.Second
	backoffMost  = 5 * time.Minute
	// backoffSaid is when it is no longer an installer that runs twice.
	backoffSaid = 8 * time.Second
)

// backoff says when a file may be edited again, so that two tools do not fight
// for it for ever. The zero value may at once.
type backoff struct {
	last  time.Time
	delay time.Duration
}

// inserted notes an edit. One that has held for three times as long as we would
// have waited was not taken back by a tool that fights.
func (b *backoff) inserted(now time.Time) {
	if b.delay == 0 || now.Sub(b.last) > 3*b.delay {
		b.delay = backoffLeast
	} else {
		b.delay = min(2*b.delay, backoffMost)
	}
	b.last = now
}

// left is how long to wait yet.
func (b *backoff) left(now time.Time) time.Duration { return max(0, b.last.Add(b.delay).Sub(now)) }

// current is the delay while it is more than the least, and 0 in peace.
func (b *backoff) current(now time.Time) time.Duration {
	if b.delay <= backoffLeast || now.Sub(b.last) > 3*b.delay {
		return 0
	}
	return b.delay
}
