#!/usr/bin/env python3
"""Real Kafka clients and tools against a broker: each produces every codec, each reads every byte of all the others back.

    tests/interop.py                          Corelane with 1 and with 3 shards
    tests/interop.py --broker kafka           Apache Kafka, the judge of these checks themselves
    tests/interop.py --bootstrap HOST:PORT    a broker that runs already
"""

import argparse
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from harness import broker, cache, plan, transcript
from harness.checks import Checks, Failed, expect, expect_equal

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS = 3


def client_commands():
    """Library -> (command prefix, the shapes that it cannot send, whether it reads by assignment)."""
    python, clients = cache.venv_python(), cache.TESTS / "clients"
    cache.node_modules()
    return {
        "confluent-kafka": ([python, clients / "python" / "confluent_client.py"], (), True),
        "java": (cache.java_classes(clients / "java" / "Client.java"), (), True),
        "kafka-python": ([python, clients / "python" / "kafka_python_client.py"], ("null records", "null headers"), True),
        "franz-go": ([cache.go_binary()], (), True),
        "kafkajs": ([cache.debian("node", "nodejs"), clients / "node" / "client.js"], ("null headers", "repeated headers"), False),
    }


def call(prefix, *arguments, stdin=None, timeout=120):
    """Runs a client or a tool; gives its standard output."""
    command = [str(part) for part in [*prefix, *arguments]]
    env = dict(os.environ, NODE_PATH=str(cache.CACHE / "node" / "node_modules"), KAFKAJS_NO_PARTITIONER_WARNING="1")
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, env=env)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} {arguments} did not end in {timeout} s: {(error.stderr or b'')[-1500:]!r}") from None
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {done.stderr[-1500:]}{done.stdout[-500:]}")
    return done.stdout


def check_clients(checks, label, bootstrap, scratch):
    clients = client_commands()
    manifests = []

    def create(name, prefix, topic):
        call(prefix, "create", bootstrap, topic, PARTITIONS)

    def produce(prefix, topic, codec, without, manifest):
        records = plan.records(f"{topic}-{codec}", PARTITIONS, without)
        path = scratch / f"{topic}-{codec}.plan"
        plan.write(path, records)
        manifest.acknowledged(records, call(prefix, "produce", bootstrap, topic, codec, path))
        path.unlink()

    for name, (prefix, without, _) in clients.items():
        topic = f"interop-{name}-{uuid.uuid4().hex[:6]}"
        manifest = plan.Manifest(topic, PARTITIONS)
        if checks.run(f"{label} {name} creates a topic", create, name, prefix, topic) is None:
            continue
        manifests.append(manifest)
        for codec in CODECS:
            checks.run(f"{label} {name} produces {codec}", produce, prefix, topic, codec, without, manifest)

    def consume(prefix):
        ends = [end for manifest in manifests for end in manifest.ends()]
        expect(any(manifest.by_place for manifest in manifests), "nothing was produced")
        plan.compare(manifests, call(prefix, "consume", bootstrap, *ends))

    for name, (prefix, _, reads) in clients.items():
        if reads:
            checks.run(f"{label} {name} reads every byte of all clients by assignment", consume, prefix)

    def ends_by_kafkajs(prefix):
        manifest = manifests[0]
        output = call(prefix, "ends", bootstrap, manifest.topic).split("\n")
        found = sorted(tuple(map(int, line.split())) for line in output if line)
        expect_equal("ends", found, [(p, 0, manifest.end(p)) for p in range(PARTITIONS)])

    if manifests:
        checks.run(f"{label} kafkajs finds the ends of a topic", ends_by_kafkajs, clients["kafkajs"][0])


def check_kcat(checks, label, bootstrap, scratch):
    kcat = [cache.debian("kcat", "kcat"), "-b", bootstrap, "-q"]
    topic = f"kcat-{uuid.uuid4().hex[:6]}"

    def metadata():
        listed = call([kcat[0], "-b", bootstrap], "-L")
        expect(" brokers:" in listed and f"at {bootstrap}" in listed, f"kcat -L said: {listed[:300]}")

    def round_trip(codec):
        values = [f"{codec} {number}" for number in range(1_000)]
        sent = "".join(f"key-{value}|{value}\n" for value in values)
        name = f"{topic}-{codec}"
        call(kcat, "-P", "-t", name, "-p", "0", "-K", "|", "-z", codec, stdin=sent)
        got = call(kcat, "-C", "-t", name, "-p", "0", "-o", "beginning", "-e", "-f", "%k|%s\n")
        expect_equal("what kcat read", got, sent)

    def offset_by_time():
        name = f"{topic}-time"
        call(kcat, "-P", "-t", name, "-p", "0", stdin="a\nb\nc\n")
        got = call(kcat, "-Q", "-t", f"{name}:0:0")
        expect(f"{name} [0] offset 0" in got, f"kcat -Q said {got!r}")

    checks.run(f"{label} kcat -L", metadata)
    for codec in ("none", "gzip", "snappy", "lz4"):
        checks.run(f"{label} kcat creates by producing, {codec}", round_trip, codec)
    checks.run(f"{label} kcat -Q finds an offset by time", offset_by_time)


def check_tools(checks, label, bootstrap, scratch):
    """The command line tools of Apache Kafka. Each call starts a JVM, so one check asks several things."""
    def tool(name, *arguments, **kwargs):
        return call([*cache.kafka_tool(name), "--bootstrap-server", bootstrap], *arguments, **kwargs)

    topic = f"tools-{uuid.uuid4().hex[:6]}"

    def create():
        output = tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=86400000")
        expect_equal("output", output.strip(), f"Created topic {topic}.")

    def listed():
        expect(topic in tool("TopicCommand", "--list").split(), "the new topic is not in the list")

    def describe():
        lines = tool("TopicCommand", "--describe", "--topic", topic).splitlines()
        head = dict(field.split(": ", 1) for field in lines[0].split("\t") if ": " in field)
        expect_equal("partitions", head["PartitionCount"].strip(), "2")
        expect_equal("replication factor", head["ReplicationFactor"].strip(), "1")
        expect("retention.ms=86400000" in lines[0], f"the config is not shown: {lines[0]}")
        expect_equal("partition lines", len(lines), 3)
        for line in lines[1:]:
            expect("Leader: none" not in line and "Leader: " in line, f"no leader: {line}")

    def alter():
        tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
        lines = tool("TopicCommand", "--describe", "--topic", topic).splitlines()
        expect("PartitionCount: 5" in lines[0] and len(lines) == 6, f"not five partitions: {lines[0]}")

    def console_round_trip():
        sent = "".join(f"k{number}:line {number}\n" for number in range(200))
        options = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
        name = f"{topic}-console"
        tool("TopicCommand", "--create", "--topic", name, "--partitions", "1")
        tool("ConsoleProducer", "--topic", name, "--compression-codec", "gzip", *options, stdin=sent)
        options = ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"]
        got = tool("consumer.ConsoleConsumer", "--topic", name, "--partition", "0", "--offset", "earliest", "--max-messages", "200", *options)
        expect_equal("what the console consumer read", got, sent)
        ends = tool("GetOffsetShell", "--topic", name)
        expect_equal("GetOffsetShell", ends.strip(), f"{name}:0:200")

    def describe_configs():
        output = tool("ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
        expect("retention.ms=86400000" in output and "cleanup.policy=delete" in output, f"configs are missing: {output[:400]}")

    def versions():
        output = tool("BrokerApiVersionsCommand")
        expect("Produce(0): " in output and "Metadata(3): " in output, output[:400])
        output = call(cache.kafka_tool("ClusterTool"), "cluster-id", "--bootstrap-server", bootstrap)
        expect("Cluster ID: " in output, output[:400])

    def refused():
        try:
            tool("TopicCommand", "--create", "--topic", topic)
        except Failed as error:
            expect("already exists" in str(error), f"another refusal: {error}")
        else:
            raise Failed("a second create succeeded")
        try:
            tool("TopicCommand", "--create", "--topic", "bad name!")
        except Failed:
            pass
        else:
            raise Failed("an illegal name was accepted")

    def delete():
        tool("TopicCommand", "--delete", "--topic", topic)
        expect(topic not in tool("TopicCommand", "--list").split(), "the topic is still listed")

    for name, check in [
        ("kafka-topics --create", create),
        ("kafka-topics --list", listed),
        ("kafka-topics --describe", describe),
        ("kafka-topics --alter --partitions", alter),
        ("kafka-topics refuses an existing and an illegal name", refused),
        ("kafka-configs --describe --all", describe_configs),
        ("kafka-broker-api-versions and kafka-cluster", versions),
        ("kafka-console-producer, -consumer and kafka-get-offsets", console_round_trip),
        ("kafka-topics --delete", delete),
    ]:
        checks.run(f"{label} {name}", check)


def check_transcript(checks, label, bootstrap, scratch):
    """The tools of administration print what they print against Apache Kafka. With one node, as the recorded run had."""
    steps = transcript.recorded()
    expect_equal("recorded commands", [command for command, _ in steps], transcript.commands())

    def same(number, command, expected):
        found = transcript.run_step(number, bootstrap, scratch)
        printed, wanted = (transcript.compared(command, lines, others) for lines, others in ((found, expected), (expected, found)))
        expect_equal("what the tool printed", printed, wanted)

    for number, (command, expected) in enumerate(steps):
        checks.run(f"{label} {command.replace(' --bootstrap-server {}', '')}", same, number, command, expected)


PARTS = {"clients": check_clients, "kcat": check_kcat, "tools": check_tools, "transcript": check_transcript}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["corelane", "kafka"], default="corelane")
    parser.add_argument("--bootstrap")
    parser.add_argument("--shards", default="1,3")
    parser.add_argument("--record", action="store_true", help="with --broker kafka: write the transcript anew that Corelane is compared with")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    checks = Checks("interop")
    parts = options.only or list(PARTS)

    def check_all(label, bootstrap):
        with tempfile.TemporaryDirectory(dir=cache.test_dir()) as scratch:
            for part in parts:
                if part == "transcript" and label == "shards=3":
                    continue
                PARTS[part](checks, label, bootstrap, Path(scratch))

    if options.bootstrap:
        check_all(options.bootstrap, options.bootstrap)
    elif options.broker == "kafka":
        kafka = broker.Kafka()
        # The number of Corelane's first node.
        kafka.properties = {"node.id": "0", "controller.quorum.voters": f"0@127.0.0.1:{kafka.port + 1}"}
        with kafka:
            if options.record:
                with tempfile.TemporaryDirectory(dir=cache.test_dir()) as scratch:
                    transcript.record(kafka.bootstrap, Path(scratch))
                return 0
            check_all("kafka", kafka.bootstrap)
    else:
        for shards in map(int, options.shards.split(",")):
            with broker.Corelane(shards=shards) as corelane:
                check_all(f"shards={shards}", corelane.bootstrap)
                checks.run(f"shards={shards} SIGTERM stops within 5 s, exit code 0", lambda: expect_equal("exit code", corelane.stop(5), 0))
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
