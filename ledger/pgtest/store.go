package pgtest

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

func (c *cluster) create(ctx context.Context, name, template string) error {
	// Copying the files is quicker than logging every compressed page.
	_, err := c.admin.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+
		` TEMPLATE `+pgx.Identifier{template}.Sanitize()+` STRATEGY file_copy`)
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

func (c *cluster) drop(ctx context.Context, name string) error {
	if _, err := c.admin.Exec(ctx, `DROP DATABASE `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	return nil
}
