package client

// Handler is what an application wants to hear about a subscription. Any may be
// nil. See the package comment for how they are run.
type Handler struct {
	// OnSubscribed: after the first answer and after each reconnect.
	OnSubscribed func(Subscribed)
	OnEvent      func(Event)
	// OnGap: events were lost, in a living subscription or while away.
	OnGap func(Gap)
	// OnError: the subscription was refused for now; the client asks again.
	OnError func(error)
	// OnUnsubscribed: the server ended or refused it for good. Not called when the
	// application ends it.
	OnUnsubscribed func(error)
}
