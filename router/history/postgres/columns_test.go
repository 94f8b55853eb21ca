package postgres

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"
)

// The fast way writes what the slow way writes.
func TestColumnsAreEncodedAsPgxDoes(t *testing.T) {
	slow, fast := pgtype.NewMap(), pgtype.NewMap()
	useColumnCodecs(fast)
	check := func(t *rapid.T, oid uint32, column any) {
		want, err := slow.Encode(oid, pgtype.BinaryFormatCode, column, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := fast.Encode(oid, pgtype.BinaryFormatCode, column, []byte("before"))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%T of %d: %x, %v, want %x", column, oid, got, err, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, pgtype.Int8ArrayOID, rapid.SliceOf(rapid.Int64()).Draw(t, "numbers"))
		check(t, pgtype.TextArrayOID, rapid.SliceOf(rapid.String()).Draw(t, "texts"))
		check(t, pgtype.BoolArrayOID, rapid.SliceOf(rapid.Bool()).Draw(t, "flags"))
		datas := rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "datas")
		for i := range datas {
			if rapid.IntRange(0, 3).Draw(t, "NULL") == 0 {
				datas[i] = nil
			}
		}
		check(t, pgtype.ByteaArrayOID, datas)
	})
	if got, err := fast.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, []int64(nil), nil); got != nil || err != nil {
		t.Errorf("a nil slice is %x, %v, want NULL as pgx has it", got, err)
	}
	for _, format := range []int16{pgtype.TextFormatCode, pgtype.BinaryFormatCode} { // what the fast way does not know
		want, err1 := slow.Encode(pgtype.Int8ArrayOID, format, []int32{1, 2}, nil)
		got, err2 := fast.Encode(pgtype.Int8ArrayOID, format, []int32{1, 2}, nil)
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("format %d: %x, %v, want %x, %v", format, got, err2, want, err1)
		}
	}
}

func BenchmarkColumns(b *testing.B) {
	numbers, datas := make([]int64, 128), make([][]byte, 128)
	for i := range datas {
		numbers[i], datas[i] = 1<<40+int64(i), make([]byte, 200)
	}
	for _, way := range []string{"pgx", "own"} {
		b.Run(way, func(b *testing.B) {
			m := pgtype.NewMap()
			if way == "own" {
				useColumnCodecs(m)
			}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = buf[:0]
				for oid, column := range map[uint32]any{pgtype.Int8ArrayOID: numbers, pgtype.ByteaArrayOID: datas} {
					var err error
					if buf, err = m.Encode(oid, pgtype.BinaryFormatCode, column, buf); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
