package control

import (
	"context"
	"fmt"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	settingsName = FolderSettings + "/gateway"
	// maxSettingsBytes bounds the text.
	maxSettingsBytes = 64 << 10
)

// SettingsError says what is wrong with settings that were offered.
type SettingsError struct{ Err error }

func (e *SettingsError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *SettingsError) Unwrap() error { return e.Err }

// Settings are the hot settings that stand above every edge's file; never nil, and
// not to be changed. Edges check them again: who wrote them may be of another version.
func (c *Control) Settings() *gatewayv1.Settings { return c.settings.Load() }

// PutSettings checks and replaces them; "": none. A SettingsError: they are wrong, and
// nothing has changed.
func (c *Control) PutSettings(ctx context.Context, yaml string) error {
	if len(yaml) > maxSettingsBytes {
		return &SettingsError{fmt.Errorf("settings have %d bytes, at most %d are allowed", len(yaml), maxSettingsBytes)}
	}
	if c.cfg.CheckSettings != nil && yaml != "" {
		if err := c.cfg.CheckSettings(yaml); err != nil {
			return &SettingsError{err}
		}
	}
	value, err := encode(&gatewayv1.Settings{Yaml: yaml, ChangedMs: uint64(c.cfg.Now().UnixMilli())})
	if err != nil {
		return err
	}
	return c.retry(ctx, func(ctx context.Context) (bool, error) {
		found, _, err := c.look(ctx, settingsName)
		if err != nil {
			return false, err
		}
		return c.put(ctx, settingsName, value, If{Revision: found.Revision}) // the last writer wins
	})
}
