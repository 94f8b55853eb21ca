package config

// Flags are what the command line of a node takes; the file and the environment have
// the rest. Tags are for kong.
type Flags struct {
	Config    string `help:"YAML file; without it everything comes from the environment." placeholder:"FILE" type:"path"`
	ID        string `help:"Overrides id." name:"id"`
	Region    string `help:"Overrides region."`
	Listen    string `help:"Overrides listen." placeholder:"HOST:PORT"`
	OpsListen string `help:"Overrides ops_listen." placeholder:"HOST:PORT"`
	LogLevel  string `help:"Overrides log_level." placeholder:"LEVEL"`
}

// Source joins them with the file that they name and an environment.
func (f Flags) Source(environ []string) Source {
	return Source{File: f.Config, Environ: environ, Flags: map[string]string{
		"id": f.ID, "region": f.Region, "listen": f.Listen, "ops_listen": f.OpsListen, "log_level": f.LogLevel,
	}}
}
