"""Record batches of Kafka's format v2, made and read byte by byte, so that a test can make wrong ones too.

The layout is that of Kafka's documentation; nothing here shares code with the broker.
"""

import gzip
import struct
import time

import cramjam
import crc32c
import lz4.frame
import zstandard

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME = 8
HEADER_BYTES = 61


def varint(number):
    """Zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    number &= (1 << 64) - 1
    out = bytearray()
    while True:
        if number < 0x80:
            out.append(number)
            return bytes(out)
        out.append(number & 0x7F | 0x80)
        number >>= 7


def read_varint(data, at):
    shift = number = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def sized(data):
    return varint(-1) if data is None else varint(len(data)) + data


def record(offset_delta, key=None, value=b"", headers=(), timestamp_delta=0, attributes=0, headers_count=None):
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value)
    body += varint(len(headers) if headers_count is None else headers_count)
    for name, content in headers:
        body += sized(name.encode()) + sized(content)
    return varint(len(body)) + body


def xerial(data, chunk=32 * 1024):
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), chunk):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + chunk]))
        out += struct.pack(">i", len(block)) + block
    return out


def compress(codec, data):
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data, 6)
    if codec == "snappy":
        return xerial(data)
    if codec == "lz4":
        return lz4.frame.compress(data, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    return zstandard.ZstdCompressor().compress(data)


def now_ms():
    return int(time.time() * 1000)


def batch(
    values=(b"value",),
    codec="none",
    *,
    records=None,
    body=None,
    base_offset=0,
    leader_epoch=-1,
    magic=2,
    attributes=None,
    last_offset_delta=None,
    timestamp=None,
    max_timestamp=None,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    count=None,
    length=None,
    crc=None,
    transactional=False,
    control=False,
):
    """One batch. `values` are values or (key, value) pairs; every header field can be given instead of computed."""
    if records is None:
        records = []
        for delta, value in enumerate(values):
            key, value = value if isinstance(value, tuple) else (None, value)
            records.append(record(delta, key, value))
    if body is None:
        body = compress(codec, b"".join(records))
    if attributes is None:
        attributes = CODECS[codec] | (16 if transactional else 0) | (32 if control else 0)
    timestamp = now_ms() if timestamp is None else timestamp
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        timestamp,
        timestamp if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if count is None else count,
    )
    checked += body
    head = struct.pack(
        ">qiibI",
        base_offset,
        len(checked) + 9 if length is None else length,
        leader_epoch,
        magic,
        crc32c.crc32c(checked) if crc is None else crc,
    )
    return head + checked


class Batch:
    """A batch as it was read."""

    def __init__(self, data):
        self.bytes = data
        self.base_offset, self.length, self.leader_epoch, self.magic, self.crc = struct.unpack_from(">qiibI", data)
        (
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = struct.unpack_from(">hiqqqhii", data, 21)
        self.crc_right = crc32c.crc32c(data[21:]) == self.crc

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def append_time(self):
        return bool(self.attributes & LOG_APPEND_TIME)

    def body(self):
        data, codec = self.bytes[HEADER_BYTES:], self.attributes & 7
        if codec == 0:
            return data
        if codec == 1:
            return gzip.decompress(data)
        if codec == 2:
            if not data.startswith(b"\x82SNAPPY\x00"):
                return bytes(cramjam.snappy.decompress_raw(data))
            out, at = b"", 16
            while at < len(data):
                (size,) = struct.unpack_from(">i", data, at)
                out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
                at += 4 + size
            return out
        if codec == 3:
            return lz4.frame.decompress(data)
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)

    def records(self):
        """(offset, timestamp, key, value, headers) of each record."""
        data, at, out = self.body(), 0, []
        for _ in range(self.count):
            length, at = read_varint(data, at)
            end = at + length
            at += 1
            timestamp_delta, at = read_varint(data, at)
            offset_delta, at = read_varint(data, at)
            parts = []
            for _ in range(2):
                size, at = read_varint(data, at)
                parts.append(None if size < 0 else data[at : at + size])
                at += max(size, 0)
            headers = []
            headers_count, at = read_varint(data, at)
            for _ in range(headers_count):
                size, at = read_varint(data, at)
                name, at = data[at : at + size].decode(), at + size
                size, at = read_varint(data, at)
                headers.append((name, None if size < 0 else data[at : at + size]))
                at += max(size, 0)
            assert at == end, f"a record ends at {at}, its length says {end}"
            out.append((self.base_offset + offset_delta, self.base_timestamp + timestamp_delta, *parts, headers))
        assert at == len(data), f"{len(data) - at} bytes after the last record"
        return out


def parse(data):
    """The whole batches in the records of a Fetch answer; a last incomplete one is left out."""
    batches, at = [], 0
    while data is not None and at + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        if at + 12 + length > len(data):
            break
        batches.append(Batch(bytes(data[at : at + 12 + length])))
        at += 12 + length
    return batches
