package router

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// invalid is a mistake of the caller; message begins with the field and a colon.
func invalid(message string) result {
	return result{code: codes.InvalidArgument, message: message}
}

// reasonTooLarge is the reason of a field violation that is about bytes.
const reasonTooLarge = "TOO_LARGE"

func tooLarge(field string, have, most int) result {
	res := invalid(fmt.Sprintf("%s: %d bytes, at most %d are allowed", field, have, most))
	res.reason = reasonTooLarge
	return res
}

// statusOf is the gRPC error of a result, with details: which field, or when to
// try again.
func statusOf(res result) error {
	s := status.New(res.code, res.message)
	var detail protoadapt.MessageV1
	switch {
	case res.code == codes.InvalidArgument:
		field, description, found := strings.Cut(res.message, ": ")
		if !found {
			return s.Err()
		}
		detail = &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description, Reason: res.reason}}}
	case res.retryAfter > 0:
		detail = &errdetails.RetryInfo{RetryDelay: durationpb.New(res.retryAfter)}
	default:
		return s.Err()
	}
	with, err := s.WithDetails(detail)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

func failure(res result) *routerv1.Failure {
	return &routerv1.Failure{Code: uint32(res.code), Message: res.message, RetryAfterMs: uint32(res.retryAfter.Milliseconds())}
}
