package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnifiedDiff(t *testing.T) {
	t.Parallel()
	long := strings.Join(strings.Split("abcdefghijklmnopqrstuvwxyz", ""), "\n") + "\n"
	at := func(text, piece, with string) edit {
		start := strings.Index(text, piece)
		return edit{span{start, start + len(piece)}, with}
	}
	for _, row := range []struct {
		name, text string
		edits      []edit
		want       string
	}{
		{"nothing", "a\nb\n", nil, ""},
		{"an edit that changes nothing", "a\nb\n", []edit{at("a\nb\n", "b", "b")}, ""},
		{"no newline at the end", "a", []edit{{span{1, 1}, "b"}}, "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+ab\n\\ No newline at end of file\n"},
		{"two edits on a line", "abc\n", []edit{{span{0, 0}, "x\n"}, {span{3, 3}, "y"}}, "--- f\n+++ f\n@@ -1,1 +1,2 @@\n-abc\n+x\n+abcy\n"},
		{"two hunks", long, []edit{at(long, "b", "B\nB"), at(long, "z", "Z")},
			"--- f\n+++ f\n@@ -1,5 +1,6 @@\n a\n-b\n+B\n+B\n c\n d\n e\n@@ -23,4 +24,4 @@\n w\n x\n y\n-z\n+Z\n"},
		{"two changes in one hunk", long, []edit{at(long, "j\n", ""), at(long, "q", "Q")},
			"--- f\n+++ f\n@@ -7,14 +7,13 @@\n g\n h\n i\n-j\n k\n l\n m\n n\n o\n p\n-q\n+Q\n r\n s\n t\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := unifiedDiff("f", []byte(row.text), row.edits); got != row.want {
				t.Errorf("it is\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// What is shown is what patch makes of it.
func TestPatchUnderstandsTheDiff(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skip("NOT TESTED: the diff is not given to patch, which is not installed")
	}
	for _, s := range styles {
		for _, layout := range layouts {
			t.Run(s.name+"/"+layout, func(t *testing.T) {
				dir := writeFiles(t, map[string]string{"web.conflist": s.text, "patched": s.text})
				path := filepath.Join(dir, "web.conflist")
				args := []string{"insert", "--layout", layout, path}
				patch := exec.Command("patch", "--binary", filepath.Join(dir, "patched"))
				patch.Stdin = strings.NewReader(runOnConflist(append(args, "--dry-run")...).stdout)
				if out, err := patch.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if run := runOnConflist(args...); run.err != nil {
					t.Fatal(run.err)
				}
				if got, want := readText(t, filepath.Join(dir, "patched")), readText(t, path); got != want {
					t.Errorf("patch makes\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}
