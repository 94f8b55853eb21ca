package api

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/channel"
)

// invalid is a mistake of the caller; message begins with the field and a colon.
func invalid(message string) channel.Result {
	return channel.Result{Code: codes.InvalidArgument, Message: message}
}

// reasonTooLarge is the reason of a field violation that is about bytes.
const reasonTooLarge = "TOO_LARGE"

func tooLarge(field string, have, most int) channel.Result {
	res := invalid(fmt.Sprintf("%s: %d bytes, at most %d are allowed", field, have, most))
	res.Reason = reasonTooLarge
	return res
}

// statusOf is the gRPC error of a result, with details: which field, or when to
// try again.
func statusOf(res channel.Result) error {
	s := status.New(res.Code, res.Message)
	var detail protoadapt.MessageV1
	switch {
	case res.Code == codes.InvalidArgument:
		field, description, found := strings.Cut(res.Message, ": ")
		if !found {
			return s.Err()
		}
		detail = &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description, Reason: res.Reason}}}
	case res.RetryAfter > 0:
		detail = &errdetails.RetryInfo{RetryDelay: durationpb.New(res.RetryAfter)}
	default:
		return s.Err()
	}
	with, err := s.WithDetails(detail)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

func failure(res channel.Result) *routerv1.Failure {
	return &routerv1.Failure{Code: uint32(res.Code), Message: res.Message, RetryAfterMs: uint32(res.RetryAfter.Milliseconds())}
}
