package postgres

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// Columns travel as one-dimensional arrays. pgx writes an array through an
// interface value and a plan for each element, which was half of this process's
// CPU for a batch; columnCodec writes the slices that this package passes in
// loops of their own, and leaves everything else (scans, text) to pgx.
type columnCodec struct {
	*pgtype.ArrayCodec
	element uint32 // OID
}

// useColumnCodecs changes how a connection encodes the arrays of Append.
func useColumnCodecs(m *pgtype.Map) {
	for _, array := range []struct{ array, element uint32 }{
		{pgtype.Int8ArrayOID, pgtype.Int8OID},
		{pgtype.TextArrayOID, pgtype.TextOID},
		{pgtype.ByteaArrayOID, pgtype.ByteaOID},
		{pgtype.BoolArrayOID, pgtype.BoolOID},
	} {
		t, ok := m.TypeForOID(array.array)
		if !ok {
			continue
		}
		if codec, ok := t.Codec.(*pgtype.ArrayCodec); ok {
			m.RegisterType(&pgtype.Type{Name: t.Name, OID: t.OID, Codec: columnCodec{codec, array.element}})
		}
	}
}

// PlanEncode implements pgtype.Codec.
func (c columnCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case []int64:
			if c.element == pgtype.Int8OID {
				return encodeColumn(appendInt64s)
			}
		case []string:
			if c.element == pgtype.TextOID {
				return encodeColumn(appendTexts)
			}
		case [][]byte:
			if c.element == pgtype.ByteaOID {
				return encodeColumn(appendByteas)
			}
		case []bool:
			if c.element == pgtype.BoolOID {
				return encodeColumn(appendBools)
			}
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// encodeColumn is the plan of one type of column.
type encodeColumn func(buf []byte, column any) []byte

// Encode implements pgtype.EncodePlan.
func (add encodeColumn) Encode(column any, buf []byte) ([]byte, error) { return add(buf, column), nil }

func appendInt64s(buf []byte, column any) []byte {
	elements := column.([]int64) // PlanEncode was asked with this type
	buf = slices.Grow(buf, columnHeaderBytes+12*len(elements))
	buf = appendColumnHeader(buf, len(elements), false, pgtype.Int8OID)
	for _, e := range elements {
		buf = binary.BigEndian.AppendUint32(buf, 8)
		buf = binary.BigEndian.AppendUint64(buf, uint64(e))
	}
	return buf
}

func appendTexts(buf []byte, column any) []byte {
	elements := column.([]string)
	size := columnHeaderBytes
	for _, e := range elements {
		size += 4 + len(e)
	}
	buf = appendColumnHeader(slices.Grow(buf, size), len(elements), false, pgtype.TextOID)
	for _, e := range elements {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(e)))
		buf = append(buf, e...)
	}
	return buf
}

// A nil element is NULL.
func appendByteas(buf []byte, column any) []byte {
	elements := column.([][]byte)
	size, nulls := columnHeaderBytes, false
	for _, e := range elements {
		size += 4 + len(e)
		nulls = nulls || e == nil
	}
	buf = appendColumnHeader(slices.Grow(buf, size), len(elements), nulls, pgtype.ByteaOID)
	for _, e := range elements {
		if e == nil {
			buf = binary.BigEndian.AppendUint32(buf, math.MaxUint32) // -1
			continue
		}
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(e)))
		buf = append(buf, e...)
	}
	return buf
}

func appendBools(buf []byte, column any) []byte {
	elements := column.([]bool)
	buf = slices.Grow(buf, columnHeaderBytes+5*len(elements))
	buf = appendColumnHeader(buf, len(elements), false, pgtype.BoolOID)
	for _, e := range elements {
		buf = append(buf, 0, 0, 0, 1, 0)
		if e {
			buf[len(buf)-1] = 1
		}
	}
	return buf
}

const columnHeaderBytes = 20

// appendColumnHeader: number of dimensions, whether there are NULLs, type of the
// elements; for the one dimension its length and the number of its first element.
func appendColumnHeader(buf []byte, n int, nulls bool, element uint32) []byte {
	flag := uint32(0)
	if nulls {
		flag = 1
	}
	buf = binary.BigEndian.AppendUint32(buf, 1)
	buf = binary.BigEndian.AppendUint32(buf, flag)
	buf = binary.BigEndian.AppendUint32(buf, element)
	buf = binary.BigEndian.AppendUint32(buf, uint32(n))
	return binary.BigEndian.AppendUint32(buf, 1)
}
