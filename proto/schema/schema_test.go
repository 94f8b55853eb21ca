package schema_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/proto/schema"
)

type lanes struct {
	Rate int           `key:"rate" default:"1,000" unit:"clients per second" rule:"above 0" doc:"So many come."`
	Wait time.Duration `key:"wait" default:"3s" rule:"between 0s and 30s" zero:"nobody waits" doc:"They wait so long."`
}

type config struct {
	Listen string        `key:"listen" default:"127.0.0.1:1" rule:"host:port" doc:"It listens here."`
	URLs   []string      `key:"urls" default:"a://b, a://c" rule:"a URL with a:// or d://" doc:"It asks these."`
	File   string        `key:"file" rule:"a file that can be read" zero:"none" example:"/x" doc:"It reads this."`
	Level  string        `key:"level" default:"info" oneof:"debug, info" doc:"It logs this."`
	Room   int64         `key:"limits.room" default:"64 KiB" unit:"bytes" rule:"at least 1 KiB" zero:"no bound" doc:"It takes so much."`
	Ratio  float64       `key:"limits.ratio" default:"1.5" rule:"above 1" doc:"It grows so much."`
	Notice time.Duration `key:"notice" default:"auto" auto:"what it takes" rule:"above 0s" doc:"It waits so long."`
	Lanes  lanes         `key:"lanes" hot:"true"`

	Kinds map[string]lanes `key:"kinds"`

	BatchEvents int `default:"512" rule:"above 0"` // no key: not an operator's
	Free        func()
}

func (c *config) Check(p *schema.Problems) {
	if c.Lanes.Rate > 5_000 && !p.Has(&c.Room) {
		p.Add(&c.Lanes.Rate, "must fit into "+p.Key(&c.Room))
	}
}

func TestDefaultsComeFromTags(t *testing.T) {
	want := config{
		Listen: "127.0.0.1:1", URLs: []string{"a://b", "a://c"}, Level: "info", Room: 65_536, Ratio: 1.5, Notice: schema.Auto,
		Lanes: lanes{Rate: 1000, Wait: 3 * time.Second}, BatchEvents: 512,
	}
	got := schema.Default[config]()
	if got.Free = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if err := schema.Validate(&got); err != nil {
		t.Error(err)
	}
}

func TestOnlyZeroFieldsAreFilled(t *testing.T) {
	c := config{Room: 2048, Lanes: lanes{Rate: 7}}
	schema.FillZero(&c)
	if c.Room != 2048 || c.Lanes.Rate != 7 || c.Lanes.Wait != 3*time.Second || c.Level != "info" {
		t.Errorf("got %+v", c)
	}
}

func TestEachRuleIsToldByItsKey(t *testing.T) {
	for want, spoil := range map[string]func(*config){
		`listen: "x": must be host:port`:                                                func(c *config) { c.Listen = "x" },
		`urls: "(number 2)": must be a URL with a:// or d://`:                           func(c *config) { c.URLs = []string{"d://e", "http://user:secret@x"} },
		`urls: "[]": must name at least one`:                                            func(c *config) { c.URLs = nil },
		`file: "/does/not/exist": cannot be read`:                                       func(c *config) { c.File = "/does/not/exist" },
		`level: "loud": must be debug or info`:                                          func(c *config) { c.Level = "loud" },
		`limits.room: 1023: must be 0 or at least 1 KiB`:                                func(c *config) { c.Room = 1023 },
		`limits.ratio: 1: must be above 1`:                                              func(c *config) { c.Ratio = 1 },
		`notice: 0s: must be above 0s`:                                                  func(c *config) { c.Notice = 0 },
		`lanes.rate: 0: must be above 0`:                                                func(c *config) { c.Lanes.Rate = 0 },
		`lanes.wait: 31s: must be between 0s and 30s`:                                   func(c *config) { c.Lanes.Wait = 31 * time.Second },
		`lanes.rate: 5001: must fit into limits.room`:                                   func(c *config) { c.Lanes.Rate = 5_001 },
		`kinds.chat.wait: -1s: must be between 0s and 30s`:                              func(c *config) { c.Kinds = map[string]lanes{"chat": {Rate: 1, Wait: -time.Second}} },
		`batch_events: -1: must be above 0`:                                             func(c *config) { c.BatchEvents = -1 },
		"":                                                                              func(c *config) { c.Room, c.File, c.Lanes.Wait = 0, "", 0 },
		"limits.room: -1: must be 0 or at least 1 KiB\nlanes.rate: -1: must be above 0": func(c *config) { c.Room, c.Lanes.Rate = -1, -1 },
	} {
		c := schema.Default[config]()
		spoil(&c)
		got := ""
		if err := schema.Validate(&c); err != nil {
			got = err.Error()
		}
		if got != strings.ReplaceAll(want, `"[]"`, "[]") && got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSettingsSayAllThatAReferenceNeeds(t *testing.T) {
	c := schema.Default[config]()
	all := make(map[string]schema.Setting)
	for _, s := range schema.Settings(&c) {
		all[s.Key] = s
	}
	for _, want := range []schema.Setting{
		{Key: "limits.room", Type: "a whole number", Unit: "bytes", Default: "65536", Zero: "no bound", Rule: "must be 0 or at least 1 KiB", Doc: "It takes so much."},
		{Key: "lanes.rate", Type: "a whole number", Unit: "clients per second", Default: "1000", Rule: "must be above 0", Hot: "true", Doc: "So many come."},
		{Key: "kinds.NAME.rate", Type: "a whole number", Unit: "clients per second", Default: "1000", Rule: "must be above 0", Doc: "So many come."},
		{Key: "notice", Type: `a duration with its unit, such as "3s" or "24h"`, Default: "what it takes", Rule: "must be above 0s", Doc: "It waits so long."},
		{Key: "urls", Type: "a list", Default: "[a://b, a://c]", Rule: "must be a URL with a:// or d://", Doc: "It asks these."},
		{Key: "file", Type: "text", Zero: "none", Rule: "must be a file that can be read", Doc: "It reads this.", Example: "/x"},
	} {
		if got := all[want.Key]; got != want {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
	if len(all) != 11 {
		t.Errorf("%d settings: %v", len(all), all)
	}
}

func TestOnlyColdKeysThatChangedAreNamed(t *testing.T) {
	a, b := schema.Default[config](), schema.Default[config]()
	b.Lanes.Rate, b.Room, b.BatchEvents = 5, 7, 9
	if got := schema.Changed(&a, &b); !reflect.DeepEqual(got, []string{"limits.room"}) {
		t.Errorf("got %v", got)
	}
}
