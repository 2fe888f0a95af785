"""The command line tools as a newcomer uses them. They are Corelane's, so Apache Kafka is no judge here."""

import socket
import subprocess
import time
import uuid

from harness import broker
from harness.checks import expect, expect_equal
from harness.wire import decode_response, request_bytes


def _run(*arguments, stdin="", timeout=60):
    """(exit code, output, errors, seconds)"""
    started = time.monotonic()
    command = [str(broker.corelane_binary()), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


def _name():
    return f"c-{uuid.uuid4().hex[:8]}"


def a130_every_acks_level_delivers(env):
    if env.judge:
        return
    for acks in ("0", "1", "all", "-1"):
        topic = env.cluster.create(1)
        code, _, said, _ = _run("produce", "--bootstrap-server", env.broker.bootstrap, "--topic", topic, f"--acks={acks}", stdin="one\ntwo\n")
        expect_equal(f"acks={acks}: exit code ({said})", code, 0)
        deadline = time.monotonic() + 10
        while env.cluster.end(topic) < 2:
            expect(time.monotonic() < deadline, f"acks={acks}: not delivered")
            time.sleep(0.01)
        expect_equal(f"acks={acks}", env.cluster.values(topic), [b"one", b"two"])
    code, _, said, _ = _run("produce", "--bootstrap-server", env.broker.bootstrap, "--topic", _name(), "--acks=2", stdin="one\n")
    expect(code != 0 and "acks" in said and "all" in said, f"acks=2: exit code {code}, {said}")


def a132_the_first_produce_to_a_new_topic_is_delivered(env):
    if env.judge:
        return
    # From the moment the port opens.
    fresh = broker.Corelane(shards=env.broker.shards)
    try:
        fresh.spawn()
        topic = _name()
        code, _, said, seconds = _run("produce", "--bootstrap-server", fresh.bootstrap, "--topic", topic, stdin="hello\n")
        expect(code == 0 and seconds < 10, f"exit code {code} after {seconds:.1f} s: {said}")
        code, out, said, _ = _run("consume", "--bootstrap-server", fresh.bootstrap, "--topic", topic, "--from-beginning", "--max-messages", 1)
        expect_equal(f"what was read ({said})", (code, out), (0, "hello\n"))
    finally:
        fresh.__exit__()


def a014_addresses_of_ipv6(env):
    if env.judge:
        return
    port = broker.free_ports(env.broker.shards)
    running = broker.Corelane(shards=env.broker.shards, properties={"listeners": f"PLAINTEXT://[::1]:{port}"})
    try:
        running.spawn()
        address, topic = f"[::1]:{port}", _name()
        code, _, said, _ = _run("produce", "--bootstrap-server", address, "--topic", topic, stdin="six\n")
        expect_equal(f"exit code ({said})", code, 0)
        code, out, said, _ = _run("consume", "--bootstrap-server", address, "--topic", topic, "--from-beginning", "--max-messages", 1)
        expect_equal(f"what was read ({said})", (code, out), (0, "six\n"))
        with socket.create_connection(("::1", port), timeout=10) as conn:
            frame = request_bytes("Metadata", 9, topics=[], allow_auto_topic_creation=False)
            conn.sendall(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(conn.recv(4, socket.MSG_WAITALL), "big")
            _, answer = decode_response("Metadata", 9, conn.recv(size, socket.MSG_WAITALL))
        # The bare address: clients put the brackets themselves.
        expect_equal("advertised", {each.host for each in answer.brokers}, {"::1"})
    finally:
        running.__exit__()


def a132_where_topics_are_not_created_it_says_how_to(env):
    if env.judge:
        return
    with env.own_broker(auto_create_topics_enable="false") as own:
        topic = _name()
        code, _, said, seconds = _run("produce", "--bootstrap-server", own.broker.bootstrap, "--topic", topic, stdin="hello\n")
        expect(code != 0, "a success")
        expect(seconds < 5, f"it took {seconds:.1f} s to say: {said}")
        for wanted in ("topics create", topic):
            expect(wanted in said, f"it does not say {wanted}: {said}")


def a014_an_address_without_brackets_is_refused(env):
    code, _, said, _ = _run("topics", "list", "--bootstrap-server", "2001:db8::1:9092")
    expect(code != 0 and "[" in said, f"an address without brackets: exit code {code}, {said}")
