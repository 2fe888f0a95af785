"""A raw connection to a broker. Messages are encoded and decoded by kafka-python's schema-driven codec, which shares nothing with ours."""

import importlib
import socket
import struct
import time
import uuid

from .checks import Failed, expect, expect_equal
from .records import parse

_MODULES = [importlib.import_module(f"kafka.protocol.{name}") for name in ("metadata", "producer", "consumer", "admin", "sasl")]


def message_class(name):
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(name)


def make(cls, version, fields):
    """A message or nested struct from a plain dict; lists of dicts become lists of structs."""
    known = cls._struct.fields
    made = {}
    for name, value in fields.items():
        field = known[name]
        if value is not None and field.is_struct_array():
            value = [make(field.data_class, version, each) for each in value]
        elif value is not None and field.is_struct():
            value = make(field.data_class, version, value)
        made[name] = value
    return cls(version=version, **made)


class Closed(Exception):
    """The broker closed the connection."""


def request_bytes(name, version, correlation=1, client_id="tests", **fields):
    """A request's bytes without the frame's length."""
    request = make(message_class(f"{name}Request"), version, fields)
    request.with_header(correlation_id=correlation, client_id=client_id)
    return bytes(request.encode(version=version, header=True))


def decode_response(name, version, frame):
    """Decodes a response to the last byte. Gives (correlation id, message)."""
    cls = message_class(f"{name}Response")
    correlation = struct.unpack_from(">i", frame)[0]
    at = 4
    if name != "ApiVersions" and cls.flexible_version_q(version):
        expect_equal("tags of the response header", frame[at], 0)
        at += 1
    elif name == "ApiVersions" and struct.unpack_from(">h", frame, at)[0] != 0:
        version = 0
    flexible = cls.flexible_version_q(version)
    decode = cls._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=cls[None])
    message, end = decode(memoryview(frame), at)
    expect_equal(f"bytes of {name} v{version} read", end, len(frame))
    return correlation, message


class Conn:
    def __init__(self, port, timeout=15, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send_frame(self, data):
        self.socket.sendall(struct.pack(">i", len(data)) + data)

    def send(self, name, version, **fields):
        self.correlation += 1
        self.send_frame(request_bytes(name, version, correlation=self.correlation, **fields))
        return self.correlation

    def _exactly(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                part = self.socket.recv(min(count - len(data), 1 << 20))
            except ConnectionResetError:
                raise Closed from None
            except TimeoutError:
                raise Failed("no answer in time") from None
            if not part:
                raise Closed
            data += part
        return bytes(data)

    def receive_frame(self):
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, name, version, correlation=None):
        got, message = decode_response(name, version, self.receive_frame())
        if correlation is not None:
            expect_equal("correlation id", got, correlation)
        return message

    def ask(self, name, version, **fields):
        return self.receive(name, version, self.send(name, version, **fields))

    def is_closed(self, within=3):
        """Whether the broker closes the connection without another byte."""
        self.socket.settimeout(within)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def is_silent(self, for_s):
        self.socket.settimeout(for_s)
        try:
            self.socket.recv(1)
            return False
        except TimeoutError:
            return True


class Cluster:
    """What one bootstrap port leads to: topics, their leaders, and the usual calls on the right connection."""

    def __init__(self, port, settle=False):
        self.port = port
        # Whether to wait until the leaders of a new topic serve. Apache Kafka answers before they do.
        self.settle = settle
        self.conns = {}
        self.ids = {}
        self.leaders = {}

    def close(self):
        for conn in self.conns.values():
            conn.close()
        self.conns = {}

    def conn(self, port=None):
        port = port or self.port
        if port not in self.conns:
            self.conns[port] = Conn(port)
        return self.conns[port]

    def metadata(self, *topics, version=12, port=None, create=False):
        wanted = [{"name": name} for name in topics] if topics else None
        return self.conn(port).ask("Metadata", version, topics=wanted, allow_auto_topic_creation=create)

    def create(self, partitions=1, name=None, **configs):
        """Creates a topic and learns its leaders; gives its name."""
        name = name or f"t-{uuid.uuid4().hex[:10]}"
        pairs = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": pairs}
        answer = self.conn().ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000, validate_only=False)
        expect_equal(f"CreateTopics {answer.topics[0].error_message}", answer.topics[0].error_code, 0)
        self.learn(name, partitions)
        return name

    def learn(self, name, partitions=None):
        deadline = time.monotonic() + 15
        while True:
            answer = self.metadata(name)
            ports = {broker.node_id: broker.port for broker in answer.brokers}
            topic = answer.topics[0]
            ready = topic.error_code == 0 and all(p.error_code == 0 and p.leader_id in ports for p in topic.partitions)
            if ready and (partitions is None or len(topic.partitions) == partitions):
                self.ids[name] = topic.topic_id
                for p in topic.partitions:
                    self.leaders[name, p.partition_index] = ports[p.leader_id]
                if not self.settle or all(self._serves(name, p.partition_index) for p in topic.partitions):
                    return
            expect(time.monotonic() < deadline, f"the partitions of {name} do not serve: {topic}")
            time.sleep(0.02)

    def _serves(self, topic, partition):
        place = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
        answer = self.leader(topic, partition).ask("ListOffsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [place]}])
        code = answer.topics[0].partitions[0].error_code
        expect(code in (0, 3, 5, 6, 56), f"ListOffsets of {topic}-{partition}: error {code}")
        return code == 0

    def leader(self, topic, partition=0):
        return self.conn(self.leaders[topic, partition])

    def name_or_id(self, topic, version, first_with_id, field="name"):
        return {"topic_id": self.ids[topic]} if version >= first_with_id else {field: topic}

    def produce_fields(self, topic, partition, records, version, acks, timeout_ms=10_000):
        data = {**self.name_or_id(topic, version, 13), "partition_data": [{"index": partition, "records": records}]}
        return {"acks": acks, "timeout_ms": timeout_ms, "topic_data": [data]}

    def produce(self, topic, records, partition=0, acks=-1, version=9):
        """Sends one produce to the leader; gives the partition's answer."""
        answer = self.leader(topic, partition).ask("Produce", version, **self.produce_fields(topic, partition, records, version, acks))
        return answer.responses[0].partition_responses[0]

    def produced(self, topic, records, **kwargs):
        """Like `produce`, and it must succeed; gives the base offset."""
        answer = self.produce(topic, records, **kwargs)
        expect_equal(f"produce ({answer.error_message})", answer.error_code, 0)
        return answer.base_offset

    def fetch_fields(self, topic, partitions, version, **over):
        """`partitions`: {partition: offset} or {partition: (offset, max bytes)}."""
        listed = []
        for partition, at in partitions.items():
            offset, limit = at if isinstance(at, tuple) else (at, 1 << 20)
            listed.append({"partition": partition, "fetch_offset": offset, "partition_max_bytes": limit})
        fields = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1}
        fields["topics"] = [{**self.name_or_id(topic, version, 13, "topic"), "partitions": listed}]
        fields.update(over)
        if version < 7:
            fields.pop("session_epoch")
        return fields

    def fetch(self, topic, offset, partition=0, version=12, limit=1 << 20, **over):
        """Fetches one partition; gives its part of the answer."""
        fields = self.fetch_fields(topic, {partition: (offset, limit)}, version, **over)
        answer = self.leader(topic, partition).ask("Fetch", version, **fields)
        return answer.responses[0].partitions[0]

    def read_all(self, topic, partition=0, start=0, end=None, limit=1 << 20):
        """Every batch from `start` to the high watermark (or to `end`), checked for gaps and CRC."""
        batches, at = [], start
        while True:
            answer = self.fetch(topic, at, partition, limit=limit, max_wait_ms=0)
            expect_equal(f"fetch of {topic}-{partition} at {at}", answer.error_code, 0)
            upto = answer.high_watermark if end is None else end
            if at >= upto:
                return batches
            got = [batch for batch in parse(answer.records) if batch.last_offset >= at]
            expect(got, f"nothing at {at} of {topic}-{partition}, the end is {upto}")
            for batch in got:
                expect(batch.crc_right, f"wrong CRC at {batch.base_offset}")
                expect(batch.base_offset <= at, f"a gap between {at} and {batch.base_offset}")
                at = batch.last_offset + 1
                batches.append(batch)

    def values(self, topic, partition=0, **kwargs):
        return [record[3] for batch in self.read_all(topic, partition, **kwargs) for record in batch.records()]

    def end(self, topic, partition=0, timestamp=-1, version=7):
        place = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        answer = self.leader(topic, partition).ask(
            "ListOffsets", version, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": [place]}]
        )
        found = answer.topics[0].partitions[0]
        expect_equal("ListOffsets", found.error_code, 0)
        return found.offset
