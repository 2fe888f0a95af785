"""Kafka's messages after the schemas that Kafka's own jar carries: made at random, written, and read back to the last byte.

Nothing here is shared with the broker: it is the independent codec for every (API, version) that a broker advertises.
"""

import json
import re
import struct
import uuid
import zipfile
from functools import cache as memoized

from . import cache

SCALARS = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q", "float64": ">d"}


class Wrong(AssertionError):
    """Bytes that are not the message that they should be."""


def _within(spec, version):
    """Whether `version` is in a list like "0-3", "4+", "none"."""
    if spec is None or spec == "none":
        return False
    low, plus, high = re.fullmatch(r"(\d+)(\+?)-?(\d*)", spec).groups()
    return int(low) <= version <= (int(high) if high else 1 << 15 if plus else int(low))


class Message:
    def __init__(self, text):
        self.name = text["name"]
        self.key = text["apiKey"]
        self.versions = text["validVersions"]
        self.flexible_spec = text["flexibleVersions"]
        self.unstable = bool(text.get("latestVersionUnstable"))
        self.fields = text["fields"]
        self.structs = {each["name"]: each["fields"] for each in text.get("commonStructs", [])}
        self._learn(self.fields)

    def _learn(self, fields):
        for field in fields:
            if "fields" in field:
                self.structs[field["type"].removeprefix("[]")] = field["fields"]
                self._learn(field["fields"])

    @property
    def range(self):
        low, _, high = self.versions.partition("-")
        return int(low), int(high or low)

    def flexible(self, version):
        return _within(self.flexible_spec, version)

    # Making

    def make(self, version, pick):
        """A message as a dict. `pick(field path, type, nullable)` gives scalars, and the count for an array (None: null)."""
        return self._make_fields(self.fields, version, pick, self.name)

    def _make_fields(self, fields, version, pick, path):
        made = {}
        for field in fields:
            if _within(field["versions"], version):
                made[field["name"]] = self._make(field, field["type"], version, pick, f"{path}.{field['name']}")
        return made

    def _make(self, field, kind, version, pick, path):
        nullable = _within(field.get("nullableVersions"), version)
        if kind.startswith("[]"):
            count = pick(path, "array", nullable)
            if count is None:
                return None
            return [self._make({}, kind[2:], version, pick, path) for _ in range(count)]
        if kind in self.structs:
            if nullable and pick(path, "struct", True) is None:
                return None
            return self._make_fields(self.structs[kind], version, pick, path)
        return pick(path, kind, nullable)

    # Writing

    def encode(self, made, version):
        return self._encode_fields(self.fields, made, version, self.flexible(version))

    def _encode_fields(self, fields, made, version, flexible):
        out, tags = bytearray(), []
        for field in fields:
            if field["name"] not in made:
                continue
            data = self._encode(field, field["type"], made[field["name"]], version, flexible)
            if _within(field.get("taggedVersions"), version):
                tags.append((field["tag"], data))
            else:
                out += data
        if flexible:
            out += _uvarint(len(tags))
            for tag, data in sorted(tags):
                out += _uvarint(tag) + _uvarint(len(data)) + data
        return bytes(out)

    def _encode(self, field, kind, value, version, flexible):
        compact = flexible and _within(field.get("flexibleVersions", "0+"), version)
        if kind.startswith("[]"):
            count = -1 if value is None else len(value)
            out = _uvarint(count + 1) if compact else struct.pack(">i", count)
            return out + b"".join(self._encode({}, kind[2:], each, version, flexible) for each in value or ())
        if kind in self.structs:
            null = b""
            if _within(field.get("nullableVersions"), version):
                null = b"\xff" if value is None else b"\x01"
            return null if value is None else null + self._encode_fields(self.structs[kind], value, version, flexible)
        if kind in SCALARS:
            return struct.pack(SCALARS[kind], value)
        if kind == "bool":
            return b"\x01" if value else b"\x00"
        if kind == "uuid":
            return value.bytes
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        if compact:
            return _uvarint(size + 1) + (data or b"")
        return struct.pack(">h" if kind == "string" else ">i", size) + (data or b"")

    # Reading

    def decode(self, data, version):
        """Reads a whole message; every byte must belong to it."""
        at = _Bytes(data)
        got = self._decode_fields(self.fields, at, version, self.flexible(version), self.name)
        if at.at != len(data):
            raise Wrong(f"{self.name} v{version}: {len(data) - at.at} bytes after its end")
        return got

    def _decode_fields(self, fields, at, version, flexible, path):
        got, tagged = {}, {}
        for field in fields:
            if _within(field["versions"], version):
                if _within(field.get("taggedVersions"), version):
                    tagged[field["tag"]] = field
                else:
                    got[field["name"]] = self._decode(field, field["type"], at, version, flexible, f"{path}.{field['name']}")
        if flexible:
            last = -1
            for _ in range(at.uvarint()):
                tag, size = at.uvarint(), at.uvarint()
                if tag <= last or tag not in tagged:
                    raise Wrong(f"{path} v{version}: tag {tag} after {last}, known are {sorted(tagged)}")
                last, end = tag, at.at + size
                field = tagged[tag]
                got[field["name"]] = self._decode(field, field["type"], at, version, flexible, f"{path}.{field['name']}")
                if at.at != end:
                    raise Wrong(f"{path}.{field['name']} v{version}: {size} bytes announced, {size - (end - at.at)} read")
        return got

    def _decode(self, field, kind, at, version, flexible, path):
        nullable = _within(field.get("nullableVersions"), version)
        compact = flexible and _within(field.get("flexibleVersions", "0+"), version)
        if kind in SCALARS:
            return struct.unpack(SCALARS[kind], at.take(struct.calcsize(SCALARS[kind])))[0]
        if kind == "bool":
            byte = at.take(1)[0]
            if byte > 1:
                raise Wrong(f"{path} v{version}: a boolean of {byte}")
            return bool(byte)
        if kind == "uuid":
            return uuid.UUID(bytes=at.take(16))
        if kind in self.structs:
            if nullable and at.take(1) == b"\xff":
                return None
            return self._decode_fields(self.structs[kind], at, version, flexible, path)
        if compact:
            size = at.uvarint() - 1
        else:
            (size,) = struct.unpack(">h", at.take(2)) if kind == "string" else struct.unpack(">i", at.take(4))
        if size < 0:
            if size < -1 or not (nullable or kind == "records"):
                raise Wrong(f"{path} v{version}: a length of {size}")
            return None
        if kind.startswith("[]"):
            return [self._decode({}, kind[2:], at, version, flexible, path) for _ in range(size)]
        data = at.take(size)
        return data.decode() if kind == "string" else data


class _Bytes:
    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Wrong(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def uvarint(self):
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                raise Wrong("an unsigned varint of more than five bytes")


def _uvarint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


@memoized
def messages():
    """(API key, "request" or "response") -> Message, of every API that a client may call."""
    found = {}
    with zipfile.ZipFile(cache.jars() / f"kafka-clients-{cache.KAFKA_VERSION}.jar") as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = json.loads(re.sub(r"(?m)^\s*//.*$", "", jar.read(name).decode()))
                if text.get("type") in ("request", "response") and text["validVersions"] != "none":
                    found[text["apiKey"], text["type"]] = Message(text)
    return found


def request_frame(key, version, correlation, made, client_id=b"schema"):
    """Header and body of a request, without the frame's length."""
    message = messages()[key, "request"]
    head = struct.pack(">hhih", key, version, correlation, len(client_id)) + client_id
    if message.flexible(version):
        head += b"\0"
    return head + message.encode(made, version)


def read_response(key, version, frame):
    """(correlation id, message) of a response frame."""
    message = messages()[key, "response"]
    (correlation,) = struct.unpack_from(">i", frame)
    at = 4
    if key == 18:
        # Its header never has tags, so that any client can read it; and an unknown version is answered in v0.
        if struct.unpack_from(">h", frame, at)[0] == 35:
            version = 0
    elif message.flexible(version):
        if frame[4] != 0:
            raise Wrong(f"{message.name} v{version}: {frame[4]} tags in the response header")
        at = 5
    return correlation, message.decode(frame[at:], version)
