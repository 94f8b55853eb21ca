package ledger

// stream follows one subscription: each step moves its position by one event, or says
// what is lost.
func (a *audit) stream(s *Stream) {
	var at Position
	known := false
	for i := range s.Steps {
		step := &s.Steps[i]
		switch step.Kind {
		case Joined:
			if known && step.At != at {
				a.breach("order", []Position{at, step.At}, "%s was at %v and goes on from %v without a word", s.By, at, step.At)
			}
			at, known = step.At, true
		case Received:
			if want := (Position{at.Epoch, at.Offset + 1}); !known || step.At != want {
				a.breach("order", []Position{at, step.At}, "%s received %v after %v", s.By, step.At, at)
			}
			at, known = step.At, true
		case Lost:
			a.loss(s, step, at, known)
			at, known = step.At, true
		}
	}
	if !s.Live || a.final == nil {
		return
	}
	if head := (Position{a.final.Epoch, a.final.Head}); known && at != head {
		a.breach("behind", []Position{at, {at.Epoch, at.Offset + 1}, head}, "%s stays at %v, the head is %v", s.By, at, head)
	} else if !known {
		a.breach("behind", []Position{head}, "%s never heard where it stands, the head is %v", s.By, head)
	}
}

// loss: told where history has really lost something, and of what the subscriber did
// not have.
func (a *audit) loss(s *Stream, step *Step, at Position, known bool) {
	if known && step.From != at {
		a.breach("order", []Position{at, step.From}, "%s was at %v and is told that what is after %v is lost", s.By, at, step.From)
	}
	if step.From.Epoch == step.At.Epoch && step.At.Offset <= step.From.Offset {
		a.breach("order", []Position{step.From, step.At}, "%s: a loss that goes back, from %v to %v", s.By, step.From, step.At)
	}
	if !a.rules.Durable {
		return
	}
	if step.From.Epoch != step.At.Epoch || a.trimmed(step.Time) <= step.From.Offset {
		a.breach("gap", []Position{step.From, step.At}, "%s %v; history had it all", s.By, step)
	}
}
