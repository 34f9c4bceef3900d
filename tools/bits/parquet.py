"""Writes small Parquet files: one row group, plain encoding, no compression, no nulls."""
import pathlib
import struct

Column = list[int] | list[float] | list[str]

INT64, DOUBLE, BYTE_ARRAY = 2, 5, 6
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12  # types of Thrift's compact protocol


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def integer(value: int) -> bytes:
    return varint(value << 1)  # zigzag encoding of non-negative values


def binary(text: str) -> bytes:
    return varint(len(text.encode())) + text.encode()


def sequence(kind: int, items: list[bytes]) -> bytes:
    size = len(items)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(items)


def record(*fields: tuple[int, int, bytes]) -> bytes:
    """Returns a Thrift struct. A field is a tuple of number, type and encoded value."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | kind]) + value
        last = number
    return out + b"\0"


def encode(values: Column) -> tuple[int, bytes]:
    """Returns the physical type of a column and its values in plain encoding."""
    if isinstance(values[0], str):
        texts = [value.encode() for value in values]
        return BYTE_ARRAY, b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if isinstance(values[0], float):
        return DOUBLE, struct.pack(f"<{len(values)}d", *values)
    return INT64, struct.pack(f"<{len(values)}q", *values)


def write(path: pathlib.Path, columns: dict[str, Column]) -> None:
    """Writes columns of equal length to a file."""
    rows = len(next(iter(columns.values())))
    root = record((4, BINARY, binary("schema")), (5, I32, integer(len(columns))))
    file, schema, chunks = b"PAR1", [root], []
    for name, values in columns.items():
        kind, data = encode(values)
        utf8 = [(6, I32, integer(0))] if kind == BYTE_ARRAY else []
        schema.append(record((1, I32, integer(kind)), (3, I32, integer(0)), (4, BINARY, binary(name)), *utf8))
        levels = [(3, I32, integer(3)), (4, I32, integer(3))]
        page = record((1, I32, integer(rows)), (2, I32, integer(0)), *levels)
        size = integer(len(data))
        head = record((1, I32, integer(0)), (2, I32, size), (3, I32, size), (5, STRUCT, page))
        size = integer(len(head) + len(data))
        metadata = record(
            (1, I32, integer(kind)),
            (2, LIST, sequence(I32, [integer(0)])),
            (3, LIST, sequence(BINARY, [binary(name)])),
            (4, I32, integer(0)),
            (5, I64, integer(rows)),
            (6, I64, size),
            (7, I64, size),
            (9, I64, integer(len(file))),
        )
        chunks.append(record((2, I64, integer(len(file))), (3, STRUCT, metadata)))
        file += head + data
    group = record((1, LIST, sequence(STRUCT, chunks)), (2, I64, integer(len(file))), (3, I64, integer(rows)))
    footer = record(
        (1, I32, integer(1)),
        (2, LIST, sequence(STRUCT, schema)),
        (3, I64, integer(rows)),
        (4, LIST, sequence(STRUCT, [group])),
    )
    path.write_bytes(file + footer + struct.pack("<I", len(footer)) + b"PAR1")
