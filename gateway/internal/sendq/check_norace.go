//go:build !race

package sendq

func (q *Queue) check() {}
