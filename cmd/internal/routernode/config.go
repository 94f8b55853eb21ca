package routernode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/history/sqlite"
	"github.com/spillway-io/spillway/router/namespace"
)

// Load reads router.yaml and reports everything that is wrong with it at once.
func Load(src config.Source) (*routerfile.File, error) {
	return routerfile.Load(src, func(f *routerfile.File) error {
		rc, err := routerConfig(f, false)
		return errors.Join(err, rc.Validate())
	})
}

// routerConfig reads the secrets that the file names. Errors begin with the key.
func routerConfig(f *routerfile.File, dev bool) (router.Config, error) {
	rc := router.Default()
	rc.ID, rc.Region, rc.API.Listen = f.ID, f.Region, f.Listen
	rc.API.HTTPListen = f.HTTPListen
	rc.API.Reflection, rc.OpenNamespaces = dev, dev
	rc.API.MaxEventBytes, rc.QueueBytes, rc.CacheBytes = f.Limits.MaxEventBytes, int64(f.Limits.QueueBytes), int64(f.Limits.CacheBytes)
	rc.Reads, rc.ReadRanges = f.Store.ReadConns, f.Limits.ReadBatch
	rc.ForgetAfter = f.Store.ForgetAfter
	rc.Committers = 1
	if f.Store.SQLite == "" {
		rc.Committers = 2
	}
	rc.Namespaces = make(map[string]namespace.Namespace, len(f.Namespaces))
	for name, ns := range f.Namespaces {
		rc.Namespaces[name] = namespaceOf(ns)
	}
	keys, keysErr := f.API.Keys()
	for _, k := range keys {
		key := api.Key{Name: k.Name, Secret: k.Secret}
		for _, r := range k.Rights {
			key.Rights = append(key.Rights, api.Right(r))
		}
		rc.API.Keys = append(rc.API.Keys, key)
	}
	secure, tlsErr := f.TLS.Config("tls")
	if secure != nil {
		rc.API.Transport, rc.API.HTTPTLS = credentials.NewTLS(secure), secure
	}
	return rc, errors.Join(keysErr, tlsErr)
}

// namespaceOf translates words that Load has checked.
func namespaceOf(in routerfile.Namespace) namespace.Namespace {
	access := map[string]namespace.Access{"granted": namespace.Granted, "everyone": namespace.Everyone, "nobody": namespace.Nobody}
	out := namespace.Namespace{
		HistorySize: in.HistorySize, HistoryTTL: in.HistoryTTL, Recover: in.Recover,
		Subscribe: access[in.Subscribe], Publish: access[in.Publish],
		PublishPerSecond: in.PublishPerSecond, PublishBurst: in.PublishBurst,
	}
	if in.Durability == "none" {
		out.Durability = namespace.None
	}
	return out
}

// storeRetry is the pause between two tries to reach the database.
const storeRetry = 2 * time.Second

// openStore opens the one store that is named. A database that cannot be reached is
// tried again until ctx ends; one that refuses is an error.
func openStore(ctx context.Context, cfg *routerfile.Store, log *slog.Logger) (history.Store, error) {
	if cfg.SQLite != "" {
		sc := sqlite.Default()
		sc.Path, sc.MaxBytes = cfg.SQLite, int64(cfg.SQLiteMax)
		store, err := sqlite.Open(ctx, sc)
		if err != nil {
			return nil, fmt.Errorf("store.sqlite: %w", err)
		}
		return store, nil
	}
	pc := postgres.Default()
	var err error
	if pc.DSN, err = cfg.DSN(); err != nil {
		return nil, run.Usagef("%s", err)
	}
	pc.Migrate, pc.WriteConns, pc.ReadConns = cfg.Migrate, cfg.WriteConns, cfg.ReadConns
	if err := pc.Validate(); err != nil {
		return nil, run.Usagef("store.postgres: %s", run.OneLine(err))
	}
	for {
		store, err := postgres.Open(ctx, pc)
		if err == nil {
			return store, nil
		}
		if !postgres.Away(err) || ctx.Err() != nil {
			return nil, fmt.Errorf("store.postgres: %w", err)
		}
		log.Warn("the database cannot be reached; trying again", "err", err, "in", storeRetry)
		timer := time.NewTimer(storeRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("store.postgres: %w", err)
		case <-timer.C:
		}
	}
}
