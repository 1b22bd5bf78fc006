package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTablesFit(t *testing.T) {
	for name, test := range map[string]struct {
		rows [][]string
		want string
	}{
		"short": {[][]string{{"web", "c1", "alive"}}, "NETWORK  CONTAINER  NETNS\nweb      c1         alive\n"},
		"none":  {nil, "NETWORK  CONTAINER  NETNS\n"},
		"an ID": {
			[][]string{{"web", strings.Repeat("0123456789abcdef", 6), "alive"}},
			"NETWORK  CONTAINER                                                         NETNS\n" +
				"web      0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde…  alive\n",
		},
		"all long, and not in ASCII": {[][]string{{strings.Repeat("é", 90), strings.Repeat("x", 70), strings.Repeat("ü", 50)}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := writeTable(&b, []string{"NETWORK", "CONTAINER", "NETNS"}, test.rows); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(line) - 1; n > 80 {
					t.Errorf("a line of %d columns: %s", n, line)
				}
			}
			if test.want != "" && b.String() != test.want {
				t.Errorf("got\n%swant\n%s", b.String(), test.want)
			}
		})
	}
}
