package admission

import (
	"time"

	"github.com/spillway-io/spillway/proto/schema"
)

// Settings can be changed while an edge runs (Gate.Set). Rates are those of one edge,
// unless they say that they are the region's. A wait above 30 s would serve nobody: old
// clients give up after 5 s.
type Settings struct {
	Enabled         bool `key:"enabled" default:"true" doc:"The edge paces arrivals. Without it the edge admits whoever it has room for, which is for comparisons only."`
	FreshPerSecond  int  `key:"fresh_per_second" default:"100" unit:"clients per second" rule:"above 0" doc:"The edge admits so many clients that have no ticket."`
	FreshBurst      int  `key:"fresh_burst" default:"200" unit:"clients" rule:"above 0" doc:"The edge admits so many of them at once, after a quiet time."`
	ResumePerSecond int  `key:"resume_per_second" default:"300" unit:"clients per second" rule:"above 0" doc:"The edge admits so many clients that have a ticket."`
	ResumeBurst     int  `key:"resume_burst" default:"30" unit:"clients" rule:"above 0" doc:"The edge admits so many of them at once."`
	MovedPerSecond  int  `key:"moved_per_second" default:"500" unit:"clients per second" rule:"above 0" doc:"Leaving edges are granted so many clients together."`

	RegionFreshPerSecond  int `key:"region_fresh_per_second" default:"0" unit:"clients per second" rule:"not negative" zero:"no such bound" doc:"All edges of the region together admit so many clients that have no ticket."`
	RegionResumePerSecond int `key:"region_resume_per_second" default:"0" unit:"clients per second" rule:"not negative" zero:"no such bound" doc:"All edges of the region together admit so many clients that have a ticket."`

	Wait       time.Duration `key:"wait" default:"3s" rule:"between 0s and 30s" zero:"nobody waits" doc:"A client waits so long for its turn at most."`
	MaxWaiting int           `key:"max_waiting" default:"4,096" unit:"clients" rule:"above 0" doc:"So many clients wait at once, in all lanes together."`
	Adaptive   bool          `key:"adaptive" default:"true" doc:"The edge lowers the rates of fresh and of resuming clients while it is under load."`

	CriticalReserve int `key:"critical_reserve" default:"100" unit:"connections" rule:"not negative" doc:"So much room is kept for moved clients of the critical tier."`
	ForeignPercent  int `key:"foreign_percent" default:"80" unit:"percent" rule:"between 0 and 100" doc:"Clients of another region are granted so much of the room."`
}

// Default returns the settings of a production edge.
func Default() Settings { return schema.Default[Settings]() }

// Validate reports every problem at once.
func (s Settings) Validate() error { return schema.Validate(&s) }
