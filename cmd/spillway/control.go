package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

// maxSettingsBytes is the largest text of settings that a router takes.
const maxSettingsBytes = 64 << 10

// admin makes one call of AdminService.
func (r *remote) admin(e *env, call func(context.Context, routerv1.AdminServiceClient) error) error {
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(e.ctx, callTime)
	defer cancel()
	if err := call(ctx, routerv1.NewAdminServiceClient(conn)); err != nil {
		return r.plain(err)
	}
	return nil
}

// told prints what was done: a line, or with --json one object.
func told(asJSON bool, object any, format string, args ...any) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(object)
	}
	_, err := fmt.Printf(format+"\n", args...)
	return err
}

type disconnectCmd struct {
	remote
	User    string `arg:"" optional:"" help:"User whose connections are closed."`
	Session string `help:"This session's instead." placeholder:"ID"`
	Code    uint32 `help:"Close code: 4000 to 4099 come back, to 4199 with new credentials, to 4299 do not." default:"4000"`
	Reason  string `help:"Told to the client."`
	JSON    bool   `help:"Print one JSON object." name:"json"`
}

// disconnectLine is what was done, in --json.
type disconnectLine struct {
	User    string `json:"user,omitempty"`
	Session string `json:"session,omitempty"`
	Code    uint32 `json:"code"`
}

// Run closes live connections; credentials stay good.
func (c *disconnectCmd) Run(e *env) error {
	if (c.User == "") == (c.Session == "") {
		return run.Usagef("name a user, or a session with --session")
	}
	err := c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		_, err := client.Disconnect(ctx, &routerv1.DisconnectRequest{User: c.User, Session: c.Session, CloseCode: c.Code, Reason: c.Reason})
		return err
	})
	if err != nil {
		return err
	}
	whose := "the connections of user " + c.User
	if c.Session != "" {
		whose = "the connection of session " + c.Session
	}
	return told(c.JSON, disconnectLine{c.User, c.Session, c.Code}, "every edge is told to close %s with %d", whose, c.Code)
}

type revokeCmd struct {
	remote
	User   string    `arg:"" help:"User whose tokens are made bad."`
	Token  string    `help:"Only the one with this jti." placeholder:"ID"`
	Before time.Time `help:"Only those issued before this moment (RFC 3339); default: now." placeholder:"TIME"`
	Reason string    `help:"Told to the client."`
	JSON   bool      `help:"Print one JSON object." name:"json"`
}

// revokeLine is what was done, in --json.
type revokeLine struct {
	User           string `json:"user"`
	Token          string `json:"token,omitempty"`
	IssuedBeforeMS uint64 `json:"issued_before_ms,omitempty"`
}

// Run makes tokens bad, with the tickets made from them, and closes what came with
// them.
func (c *revokeCmd) Run(e *env) error {
	if c.Token != "" && !c.Before.IsZero() {
		return run.Usagef("--token and --before exclude each other")
	}
	request := &routerv1.RevokeRequest{User: c.User, TokenId: c.Token, Reason: c.Reason}
	if !c.Before.IsZero() {
		request.IssuedBeforeMs = uint64(max(1, c.Before.UnixMilli()))
	}
	err := c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		answer, err := client.Revoke(ctx, request)
		request.IssuedBeforeMs = answer.GetIssuedBeforeMs()
		return err
	})
	if err != nil {
		return err
	}
	line := revokeLine{c.User, c.Token, request.IssuedBeforeMs}
	if c.Token != "" {
		return told(c.JSON, line, "token %s of user %s is revoked", c.Token, c.User)
	}
	at := time.UnixMilli(int64(request.IssuedBeforeMs)).UTC().Format(time.RFC3339)
	return told(c.JSON, line, "all tokens of user %s that were issued before %s are revoked", c.User, at)
}

type settingsCmd struct {
	Get settingsGetCmd `cmd:"" help:"Print them."`
	Put settingsPutCmd `cmd:"" help:"Replace them; an empty file: none."`
}

type settingsGetCmd struct {
	remote
	JSON bool `help:"Print one JSON object." name:"json"`
}

// Run prints the hot settings that stand above the files of all edges.
func (c *settingsGetCmd) Run(e *env) error {
	return c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		answer, err := client.GetSettings(ctx, &routerv1.GetSettingsRequest{})
		if err != nil {
			return err
		}
		if c.JSON {
			return json.NewEncoder(os.Stdout).Encode(struct {
				YAML      string `json:"yaml"`
				ChangedMS uint64 `json:"changed_ms"`
			}{answer.GetYaml(), answer.GetChangedMs()})
		}
		_, err = fmt.Print(answer.GetYaml())
		return err
	})
}

type settingsPutCmd struct {
	remote
	File string `arg:"" help:"YAML with keys of gateway.yaml that can be reloaded; - is standard input."`
}

// Run replaces the hot settings; wrong ones change nothing.
func (c *settingsPutCmd) Run(e *env) error {
	in := io.Reader(os.Stdin)
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return run.Usagef("%v", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSettingsBytes+1))
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if len(text) > maxSettingsBytes {
		return run.Usagef("%s: has more than %d bytes", c.File, maxSettingsBytes)
	}
	return c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		_, err := client.PutSettings(ctx, &routerv1.PutSettingsRequest{Yaml: string(text)})
		return err
	})
}
