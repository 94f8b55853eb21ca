package drill

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
)

// Options of a run. Zero values mean what Default says.
type Options struct {
	Scenario   string
	Edges      int           // at first; evacuate makes two regions of half of them
	Clients    int           // in channels of ten
	Rate       int           // events a second, over all channels
	Policy     string        // of the clients, see loadgen.Policies
	OneAddress string        // "": edges have URLs of their own; "builtin" or "haproxy": behind a balancer
	Admission  Lanes         // of each edge
	Deadline   time.Duration // of a drain
	Notice     time.Duration // of a drain: how long balancers are waited for
	MaxConns   int           // of each edge
	Ping       time.Duration // between two heartbeats of a client
	Window     time.Duration // of an evacuation; of the time in which an edge flaps
	Steady     time.Duration // before the harm: so that clients know the present retry window
	FillRate   int           // clients that come in a second while the cluster is filled
	Store      string        // "sqlite", "postgres", "": PostgreSQL where the scenario needs it
	Generators int           // processes; 0: one for each 15,000 clients
	Spare      int           // edges that a scenario starts later
	Live       bool          // each client has a channel without history too
	Silent     bool          // proxy-cut: without FIN
	Together   int           // clients in a channel; 0: ten
	Part       string        // outage: what is taken away, see Parts
	Away       time.Duration // outage: for how long

	Server string // router of a given cluster; "": start one
	Edge   string // WebSocket URL of a given cluster
	// Secret signs the clients' tokens on a given cluster; none: they come without.
	Secret     []byte
	APIKeyFile string
	CAFile     string

	Binary []string  // cmd/drill; default: this program
	Keep   string    // folder for configurations and logs of the cluster; "": removed at the end
	Out    io.Writer // what it does, for people; nil: nothing

	generator func(*loadgen.Config) // a scenario's own changes
	still     bool                  // nothing is published but what the scenario publishes
	late      int                   // clients that are not there when the cluster is filled
}

// InChannel is how many clients share a channel.
func (o *Options) InChannel() int {
	if o.Together == 0 {
		return perChannel
	}
	return o.Together
}

// Generator lets a scenario change what its clients do.
func (o *Options) Generator(cfg *loadgen.Config) {
	if o.generator != nil {
		o.generator(cfg)
	}
}

// Lanes are admission settings of an edge.
type Lanes struct {
	Fresh  int  `json:"fresh_per_second"`
	Burst  int  `json:"fresh_burst"`
	Resume int  `json:"resume_per_second"`
	Moved  int  `json:"moved_per_second"`
	Off    bool `json:"off"`
}

// resumeBurst is the burst of the resume lane, which drills leave at its default.
const resumeBurst = 30

// Default is what the command line has.
func Default() Options {
	return Options{
		Scenario: "restart", Edges: 6, Clients: 60_000, Rate: 1000, Policy: "sdk", Deadline: 25 * time.Second, FillRate: 2000,
		MaxConns: 16_000, Ping: 30 * time.Second, Window: 60 * time.Second, Steady: 35 * time.Second,
		Part: "nats", Away: 10 * time.Minute,
		Admission: Lanes{Fresh: 100, Burst: 200, Resume: 300, Moved: 500},
	}
}

// DefaultOf is Default as a scenario has it; an unknown one has what most have.
func DefaultOf(scenario string) Options {
	o := Default()
	if s, ok := find(scenario); ok {
		o.Scenario = scenario
		if s.tune != nil {
			s.tune(&o)
		}
	}
	return o
}

// scenario is one drill.
type scenario struct {
	name string
	help string
	run  func(*world) error
	tune func(*Options) // before the cluster starts
	// second changes the options for a second run, beside the first; judged: its promises
	// count too.
	second func(*Options) (judged bool, note string)
	given  bool // works on a given cluster
	one    bool // works behind one address
}

var errGiven = errors.New("this scenario needs a cluster of its own: leave --server out")

func find(name string) (scenario, bool) {
	i := slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == name })
	if i < 0 {
		return scenario{}, false
	}
	return scenarios()[i], true
}

// Scenarios lists names and what they do.
func Scenarios() []string {
	var all []string
	for _, s := range scenarios() {
		all = append(all, fmt.Sprintf("%-12s %s", s.name, s.help))
	}
	return all
}

// Validate reports all problems at once.
func (o *Options) Validate() error {
	var errs []error
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%s: %v: %s", field, value, rule))
	}
	s, ok := find(o.Scenario)
	if !ok {
		var names []string
		for _, s := range scenarios() {
			names = append(names, s.name)
		}
		bad("scenario", o.Scenario, "must be one of "+strings.Join(names, ", "))
	}
	if o.Edges < 2 || o.Edges > 50 {
		bad("--edges", o.Edges, "must be between 2 and 50")
	}
	if o.Clients < 10*o.Edges || o.Clients > 500_000 {
		bad("--clients", o.Clients, "must be between ten an edge and 500,000")
	}
	if o.Rate < 1 || o.Rate > 50_000 {
		bad("--rate", o.Rate, "must be between 1 and 50,000")
	}
	if _, err := loadgen.NamedPolicy(o.Policy); err != nil {
		bad("--policy", "", err.Error())
	}
	if !slices.Contains(Parts(), o.Part) {
		bad("--part", o.Part, "must be one of "+strings.Join(Parts(), ", "))
	}
	if o.Away < 10*time.Second || o.Away > 30*time.Minute {
		bad("--away", o.Away, "must be between 10s and 30m")
	}
	if o.FillRate < 1 {
		bad("--fill-rate", o.FillRate, "must be above 0")
	}
	if !slices.Contains([]string{"", "builtin", "haproxy"}, o.OneAddress) {
		bad("--one-address", o.OneAddress, "must be builtin or haproxy")
	}
	if o.OneAddress != "" && !s.one {
		bad("--one-address", o.Scenario, "this scenario does not work behind one address")
	}
	if o.Server != "" && !s.given {
		errs = append(errs, errGiven)
	}
	if (o.Server == "") != (o.Edge == "") {
		bad("--server", o.Server, "goes with --edge")
	}
	for _, n := range []int{o.Admission.Fresh, o.Admission.Burst, o.Admission.Resume, o.Admission.Moved} {
		if n < 1 {
			bad("admission", n, "rates and bursts must be above 0")
		}
	}
	return errors.Join(errs...)
}
