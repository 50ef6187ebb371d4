package jointoken_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

func TestRoundTrip(t *testing.T) {
	for _, name := range []fleet.ClusterName{"a", "prod-eu-01", fleet.ClusterName(strings.Repeat("x", 63))} {
		want := jointoken.New(name, [32]byte{1, 2, 3})
		got, err := jointoken.Parse(" \n" + want.String() + "\n")
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	good := jointoken.New("prod-eu-01", [32]byte{7}).String()
	swap := func(i int) string {
		b := []byte(good)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	for name, c := range map[string]struct{ in, want string }{
		"empty":            {"", "is empty"},
		"blank":            {" \n", "is empty"},
		"other text":       {"eyJhbGciOiJSUzI1NiJ9.e30.x", "not a join token"},
		"word":             {"hello", "not a join token"},
		"newer":            {"towline2." + good[9:], "version \"towline2\""},
		"prefix only":      {"towline1.", "cut short"},
		"prefix cut":       {"towli", "cut short"},
		"cut in the head":  {good[:30], "cut short"},
		"cut by one":       {good[:len(good)-1], "cut short"},
		"cut by ten":       {good[:len(good)-10], "cut short"},
		"longer":           {good + "AAAA", "damaged"},
		"changed cluster":  {swap(len(good) - 10), "damaged"},
		"changed secret":   {swap(40), "damaged"},
		"other characters": {good[:20] + "***" + good[23:], "damaged"},
	} {
		_, err := jointoken.Parse(c.in)
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if err != nil && len(c.in) > 40 && strings.Contains(err.Error(), c.in[20:40]) {
			t.Errorf("%s: the error repeats the token: %v", name, err)
		}
	}
}

func TestSecretIsNotLogged(t *testing.T) {
	tok := jointoken.New("prod-eu-01", [32]byte{7})
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", tok)
	if strings.Contains(out.String(), "Secret") || strings.Contains(out.String(), tok.String()[9:]) {
		t.Errorf("logged %s", out.String())
	}
}

func TestHashDependsOnIDAndSecret(t *testing.T) {
	a, b := jointoken.New("a", [32]byte{}), jointoken.New("a", [32]byte{})
	b.Secret = a.Secret
	if a.SecretHash() == b.SecretHash() {
		t.Error("tokens with the same secret and other ids have one hash")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(jointoken.New("prod-eu-01", [32]byte{7}).String())
	f.Add("towline1.")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := jointoken.Parse(s)
		if err == nil && tok.String() != strings.Join(strings.Fields(s), "") {
			t.Errorf("%q reads as %q", s, tok.String())
		}
	})
}
