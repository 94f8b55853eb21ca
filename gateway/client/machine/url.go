package machine

import (
	"errors"
	"fmt"
	"net/url"
)

// CheckURL says what is wrong with the URL of a cluster or an edge.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err == nil {
		switch {
		case u.Scheme != "ws" && u.Scheme != "wss":
			err = errors.New("the scheme must be ws or wss")
		case u.Host == "":
			err = errors.New("the host is missing")
		case u.Fragment != "" || u.User != nil:
			err = errors.New("user and fragment are not allowed")
		}
	}
	if err != nil {
		return fmt.Errorf("url %q: %w", text, err)
	}
	return nil
}
