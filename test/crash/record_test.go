package crash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"
)

// The kinds of steps.
const (
	wrote   = 'w'
	flushed = 'f'
	marked  = 'm'
	ended   = 'e' // in no record
)

// step is one thing that happened to a disk.
type step struct {
	kind byte
	off  int64
	data []byte
}

// readRecord reads what happened to a disk, from first to last. Each step is a
// line with its kind, offset and length, followed by the data.
func readRecord(image string) ([]step, error) {
	data, err := os.ReadFile(recordOf(image))
	if err != nil {
		return nil, err
	}
	var steps []step
	for len(data) > 0 {
		var s step
		var length int
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		if _, err := fmt.Sscanf(string(line), "%c %d %d", &s.kind, &s.off, &length); err != nil || length > len(rest) {
			return nil, fmt.Errorf("reading step %d of a record: %q", len(steps), line)
		}
		s.data, data = rest[:length], rest[length:]
		steps = append(steps, s)
	}
	return steps, nil
}

// What a power cut keeps of the writes since the last flush.
const (
	all   = "all"
	none  = "none"
	some  = "some" // of the writes
	parts = "torn" // some of the blocks of the writes
)

// state is what a power cut may leave of a disk.
type state struct {
	steps   int // how many have been taken
	flushed int // how many of these are known to be on the medium
	kept    string
	seed    uint64 // which of the others are, too
	marks   int    // how many of the steps are marks
}

func (s state) String() string { return fmt.Sprintf("%s of step %d to %d", s.kept, s.flushed, s.steps) }

// statesOf lists what a power cut may leave, for every point of a record: each
// disk once, after as many marks as can have come before it.
func statesOf(steps []step, seed uint64) []state {
	var states []state
	s := state{}
	writes, blocks := 0, 0 // since the last flush
	for n := 0; n <= len(steps); n++ {
		kind := byte(ended)
		if n < len(steps) {
			kind = steps[n].kind
		}
		s.steps, s.seed = n, seed+uint64(n)
		keep := func(kept string, possible bool) {
			if possible && kind != marked {
				s.kept = kept
				states = append(states, s)
			}
		}
		keep(all, writes > 0 && kind != flushed || kind == ended)
		keep(none, writes > 0 && kind != wrote)
		keep(some, writes > 1)
		keep(parts, blocks > 1)
		switch kind {
		case marked:
			s.marks++
		case flushed:
			s.flushed, writes, blocks = n, 0, 0
		case wrote:
			writes, blocks = writes+1, blocks+len(steps[n].data)/blockSize
		}
	}
	return states
}

// keeps reports whether the block that a step wrote is on the medium.
func (s state) keeps(step int, block int64) bool {
	switch {
	case step < s.flushed || s.kept == all:
		return true
	case s.kept == none:
		return false
	case s.kept == some:
		block = 0
	}
	// A coin for each write or block, always the same one.
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, []uint64{s.seed, uint64(step), uint64(block)})
	return h.Sum64()>>32&1 == 1
}

// blocks are the blocks of a disk that are not zero.
type blocks map[int64][]byte

// readBlocks reads an image, of which most is a hole.
func readBlocks(image string) (blocks, error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make(blocks)
	zero := make([]byte, blockSize)
	for off := int64(0); ; off += blockSize {
		// Where the next data is; ENXIO is the end.
		if off, err = f.Seek(off, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return b, nil
		}
		data := make([]byte, blockSize)
		if err == nil {
			_, err = f.ReadAt(data, off)
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(data, zero) {
			b[off/blockSize] = data
		}
	}
}

// build makes the file path the disk of s: it began as b, and then steps were
// taken.
func (s state) build(path string, size int64, b blocks, steps []step) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	left := make(blocks, len(b))
	for block, data := range b {
		left[block] = data
	}
	for n, step := range steps[:s.steps] {
		for i := 0; i < len(step.data); i += blockSize {
			block := (step.off + int64(i)) / blockSize
			if s.keeps(n, block) {
				left[block] = step.data[i : i+blockSize]
			}
		}
	}
	for block, data := range left {
		if _, err := f.WriteAt(data, block*blockSize); err != nil {
			return err
		}
	}
	return nil
}
