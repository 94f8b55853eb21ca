package gateway

import "encoding/binary"

// sessionIndex finds the conn that counts of a session among those of one loop. An
// open table of slots, 4 bytes each and at most three quarters full: a map would cost
// ten times that. Session ids are random and made by edges only, so they are
// their own hash.
type sessionIndex struct {
	table []uint32 // slot of the conn + 1; 0: free
	n     int      // n <= len(table)*3/4
}

const leastIndex = 64

// home is where the search for an id begins.
func (x *sessionIndex) home(id *[16]byte) int {
	return int(binary.LittleEndian.Uint64(id[:8]) & uint64(len(x.table)-1))
}

func (x *sessionIndex) find(slots []*conn, id *[16]byte) *conn {
	if x.n == 0 {
		return nil
	}
	for i := x.home(id); x.table[i] != 0; i = (i + 1) & (len(x.table) - 1) {
		if c := slots[x.table[i]-1]; c.session.id == *id {
			return c
		}
	}
	return nil
}

// put adds a conn whose session is not there yet.
func (x *sessionIndex) put(slots []*conn, c *conn) {
	if (x.n+1)*4 > len(x.table)*3 {
		x.resize(slots, max(len(x.table)*2, leastIndex))
	}
	x.n++
	x.place(slots, uint32(c.token))
}

func (x *sessionIndex) place(slots []*conn, slot uint32) {
	i := x.home(&slots[slot].session.id)
	for x.table[i] != 0 {
		i = (i + 1) & (len(x.table) - 1)
	}
	x.table[i] = slot + 1
}

// remove takes a conn out while its slot is still its own; no gap is left in a
// search.
func (x *sessionIndex) remove(slots []*conn, c *conn) {
	if x.n == 0 {
		return
	}
	mask := len(x.table) - 1
	i := x.home(&c.session.id)
	for x.table[i] != uint32(c.token)+1 {
		if x.table[i] == 0 {
			return
		}
		i = (i + 1) & mask
	}
	x.n--
	hole := i
	for i = (i + 1) & mask; x.table[i] != 0; i = (i + 1) & mask {
		// An entry may move back to the hole unless its search begins behind it.
		if home := x.home(&slots[x.table[i]-1].session.id); (i-home)&mask >= (i-hole)&mask {
			x.table[hole] = x.table[i]
			hole = i
		}
	}
	x.table[hole] = 0
	if len(x.table) > leastIndex && x.n*8 < len(x.table) {
		x.resize(slots, len(x.table)/2)
	}
}

func (x *sessionIndex) resize(slots []*conn, size int) {
	old := x.table
	x.table = make([]uint32, size)
	for _, entry := range old {
		if entry != 0 {
			x.place(slots, entry-1)
		}
	}
}
