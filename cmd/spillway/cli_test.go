package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

func TestPositions(t *testing.T) {
	epoch, offset, err := position("a:b:9007199254740991")
	if epoch != "a:b" || offset != 1<<53-1 || err != nil {
		t.Errorf("got %q %d %v", epoch, offset, err)
	}
	for _, bad := range []string{"", "x", ":1", "e:", "e:-1", "e:9007199254740992", "e:1.5"} {
		if _, _, err := position(bad); run.Code(err) != run.ExitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Data is printed as it was published: numbers past 2^53, <, escapes.
func TestPrintedDataIsWhatWasPublished(t *testing.T) {
	e := event{channel: `c"h`, epoch: "1", offset: 7, timeMS: 5, data: []byte(`{"n":9007199254740993,"t":"<b>\u00e9"}`)}
	var b strings.Builder
	if err := printEvent(&b, e, true); err != nil {
		t.Fatal(err)
	}
	if want := `{"channel":"c\"h","epoch":"1","offset":7,"time_ms":5,"data":{"n":9007199254740993,"t":"<b>\u00e9"}}` + "\n"; b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
	b.Reset()
	e.binary, e.meta, e.from = true, map[string]string{"k": "v"}, "ann"
	if err := printEvent(&b, e, true); err != nil || !json.Valid([]byte(b.String())) || !strings.Contains(b.String(), `"data_b64":"eyJ`) {
		t.Errorf("binary: %v %s", err, b.String())
	}
	b.Reset()
	if err := printEvent(&b, e, false); err != nil || b.String() != "c\"h 1:7 (38 bytes)\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestDataThatIsNoJSONAsksForText(t *testing.T) {
	c := publishCmd{Channel: "a"}
	if _, err := c.publication([]byte("hello world")); err == nil || !strings.Contains(err.Error(), "use --text") {
		t.Errorf("got %v", err)
	}
	c.Text = true
	p, err := c.publication([]byte("a <b> \"c\"\nd\n"))
	if err != nil || p.GetJson() != `"a <b> \"c\"\nd"` {
		t.Errorf("got %s, %v", p.GetJson(), err)
	}
}
