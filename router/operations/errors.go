package operations

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence/control"
)

var errNoControl = status.Error(codes.FailedPrecondition, "this router has no part in the cluster's control records")

// invalid is a mistake of the caller in a field; its details name the field.
func invalid(field, description string) error {
	s := status.New(codes.InvalidArgument, field+": "+description)
	with, err := s.WithDetails(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description}}})
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

// controlError turns an error of presence/control into a gRPC status.
func controlError(err error) error {
	var (
		conflict   *control.ConflictError
		settings   *control.SettingsError
		revocation *control.RevocationError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &conflict):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.As(err, &settings), errors.As(err, &revocation):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, control.ErrNoOperation):
		return status.Error(codes.NotFound, err.Error())
	case status.Code(err) != codes.Unknown:
		return err // it was one already
	}
	return status.Error(codes.Unavailable, err.Error())
}
