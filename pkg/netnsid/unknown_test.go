package netnsid

import "testing"

// An attachment imported from a libcni that does not cache the namespace may be
// running: nobody may take it for dead before the next boot.
func TestANamespaceThatNobodyKnowsIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	if alive, err := (ID{BootID: boot}).Alive(); err != nil || !alive {
		t.Errorf("in this boot: Alive() = %v, %v; want true", alive, err)
	}
	if alive, err := (ID{BootID: "another"}).Alive(); err != nil || alive {
		t.Errorf("after a boot: Alive() = %v, %v; want false", alive, err)
	}
}
