"""Topics, configs, metadata: the admin calls that the spine has."""

import time
import uuid

from harness import broker
from harness.checks import Failed, expect, expect_equal
from harness.records import batch
from harness.wire import Closed, Cluster


def _create(env, name, version=7, partitions=1, replicas=1, configs=(), validate_only=False):
    topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "assignments": []}
    topic["configs"] = [{"name": key, "value": value} for key, value in configs]
    answer = env.cluster.conn().ask("CreateTopics", version, topics=[topic], timeout_ms=10_000, validate_only=validate_only)
    return answer.topics[0]


def _exists(env, name):
    return env.cluster.metadata(name).topics[0].error_code == 0


def _name():
    return f"m-{uuid.uuid4().hex[:8]}"


def a009_auto_creation_answers_only_retriable_codes(env):
    for _ in range(30):
        name = _name()
        deadline = time.monotonic() + 10
        while True:
            code = env.cluster.metadata(name, create=True).topics[0].error_code
            expect(code in (0, 3, 5), f"error {code} for a topic that is being created")
            if code == 0:
                break
            expect(time.monotonic() < deadline, "not created in 10 s")
    for bad in ("bad name", "a/b", "x" * 250, ".", ".."):
        expect_equal(f"code for {bad[:10]!r}", env.cluster.metadata(bad, create=True).topics[0].error_code, 17)


def a009_created_topics_serve_when_create_is_answered(env):
    env.cluster.settle = False
    for _ in range(20):
        name = env.cluster.create(3)
        for partition in range(3):
            code = env.cluster.produce(name, batch(), partition=partition).error_code
            expect(code == 0 or env.judge and code == 6, f"error {code} right after CreateTopics")


def a012_wildcards_are_not_advertised(env):
    for broker in env.cluster.metadata().brokers:
        expect(broker.host not in ("0.0.0.0", "::", "[::]", ""), f"advertised {broker.host}")
        expect(broker.port != 0, "advertised port 0")


def a015_validate_only_finds_faults_and_changes_nothing(env):
    existing, new = env.cluster.create(1), _name()
    expect_equal("existing name", _create(env, existing, validate_only=True).error_code, 36)
    expect_equal("new name", _create(env, new, validate_only=True).error_code, 0)
    expect(not _exists(env, new), "validate_only created the topic")
    expect_equal("bad config", _create(env, new, configs=[("retention.ms", "x")], validate_only=True).error_code, 40)
    expect_equal("nine replicas", _create(env, new, replicas=9, validate_only=True).error_code, 38)
    twice = [{"name": new, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}] * 2
    answer = env.cluster.conn().ask("CreateTopics", 7, topics=twice, timeout_ms=1000, validate_only=True)
    expect_equal("a name twice", {topic.error_code for topic in answer.topics}, {42})


def a016_bad_config_values_are_refused_by_name(env):
    for key, value in [
        ("retention.ms", None),
        ("no.such.config", "1"),
        ("segment.bytes", "abc"),
        ("min.insync.replicas", "0"),
        ("cleanup.policy", "compact,foo"),
        ("segment.bytes", "1"),
    ]:
        name = _name()
        answer = _create(env, name, configs=[(key, value)])
        expect_equal(f"{key}={value}", answer.error_code, 40)
        expect(answer.error_message and key in answer.error_message, f"the message does not name {key}: {answer.error_message}")
        expect(not _exists(env, name), f"{key}={value} created the topic")


def a016_bad_names_counts_and_factors(env):
    expect_equal("illegal name", _create(env, "bad name").error_code, 17)
    expect_equal("zero partitions", _create(env, _name(), partitions=0).error_code, 37)
    expect_equal("minus two partitions", _create(env, _name(), partitions=-2).error_code, 37)
    expect_equal("zero replicas", _create(env, _name(), replicas=0).error_code, 38)
    first = _name()
    expect_equal("dots", _create(env, f"{first}.x").error_code, 0)
    expect_equal("a name that collides", _create(env, f"{first}_x").error_code, 17)


TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "CLASS": 8, "PASSWORD": 9}


def a017_topic_configs_have_kafka_s_types_and_parse_by_them(env):
    topic = env.cluster.create(1, retention_ms=12345)
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    answer = env.cluster.conn().ask("DescribeConfigs", 4, resources=[resource], include_synonyms=True, include_documentation=True)
    result = answer.results[0]
    expect_equal("error", result.error_code, 0)
    configs = {config.name: config for config in result.configs}
    for name, kind in {
        "retention.ms": "LONG",
        "cleanup.policy": "LIST",
        "min.insync.replicas": "INT",
        "preallocate": "BOOLEAN",
        "compression.type": "STRING",
        "segment.bytes": "INT",
        "max.message.bytes": "INT",
        "message.timestamp.type": "STRING",
        "flush.messages": "LONG",
        "min.cleanable.dirty.ratio": "DOUBLE",
        "unclean.leader.election.enable": "BOOLEAN",
    }.items():
        expect(name in configs, f"{name} is missing")
        expect_equal(f"type of {name}", configs[name].config_type, TYPES[kind])
    for name, config in configs.items():
        if config.config_type in (TYPES["INT"], TYPES["LONG"], TYPES["SHORT"]):
            int(config.value)
        elif config.config_type == TYPES["DOUBLE"]:
            float(config.value)
        elif config.config_type == TYPES["BOOLEAN"]:
            expect(config.value in ("true", "false"), f"{name}={config.value}")
    expect_equal("retention.ms", configs["retention.ms"].value, "12345")
    # 1: dynamic topic config; 5: default.
    expect_equal("source of retention.ms", configs["retention.ms"].config_source, 1)
    expect_equal("source of segment.bytes", configs["segment.bytes"].config_source, 5)
    missing = {"resource_type": 2, "resource_name": _name(), "configuration_keys": None}
    expect_equal("unknown topic", env.cluster.conn().ask("DescribeConfigs", 4, resources=[missing]).results[0].error_code, 3)


def a018_create_partitions_validates_without_changing(env):
    topic = env.cluster.create(3)

    def grow(count, validate_only):
        wanted = [{"name": topic, "count": count, "assignments": None}]
        answer = env.cluster.conn().ask("CreatePartitions", 3, topics=wanted, timeout_ms=10_000, validate_only=validate_only)
        return answer.results[0].error_code

    expect_equal("3 to 6, validated", grow(6, True), 0)
    expect_equal("partitions", len(env.cluster.metadata(topic).topics[0].partitions), 3)
    for count in (3, 2, 0, -1):
        expect_equal(f"3 to {count}", grow(count, False), 37)
    expect_equal("3 to 6", grow(6, False), 0)
    env.cluster.learn(topic, 6)
    for partition in range(6):
        env.cluster.produced(topic, batch(), partition=partition)


def a126_a_recreated_topic_starts_empty_with_a_new_id(env):
    name = _name()
    ids = set()
    for _ in range(5):
        env.cluster.create(1, name=name)
        ids.add(env.cluster.ids[name])
        expect_equal("first offset", env.cluster.produced(name, batch([b"a", b"b"])), 0)
        answer = env.cluster.conn().ask("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=10_000)
        expect_equal("delete", answer.responses[0].error_code, 0)
        deadline = time.monotonic() + 10
        while _exists(env, name):
            expect(time.monotonic() < deadline, "still listed 10 s after its deletion")
            time.sleep(0.01)
    expect_equal("topic ids", len(ids), 5)
    expect_equal("a second delete", env.cluster.conn().ask("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=1000).responses[0].error_code, 3)


def metadata_answers_each_topic_once_and_by_id(env):
    topic = env.cluster.create(2)
    expect_equal("a topic named twice", len(env.cluster.metadata(topic, topic).topics), 1)
    by_id = env.cluster.conn().ask("Metadata", 12, topics=[{"topic_id": env.cluster.ids[topic], "name": None}], allow_auto_topic_creation=False)
    expect_equal("name by id", by_id.topics[0].name, topic)
    unknown = env.cluster.conn().ask("Metadata", 12, topics=[{"topic_id": uuid.uuid4(), "name": None}], allow_auto_topic_creation=False)
    expect_equal("unknown id", unknown.topics[0].error_code, 100)
    everything = env.cluster.metadata()
    expect(topic in [each.name for each in everything.topics], "not among all topics")
    expect(everything.controller_id in [each.node_id for each in everything.brokers], "the controller is not among the brokers")


def every_port_names_the_same_leaders(env):
    topic = env.cluster.create(6)
    answers = []
    for shard in range(env.broker.shards):
        answer = env.cluster.metadata(topic, port=env.port + shard)
        answers.append([(p.partition_index, p.leader_id, p.leader_epoch) for p in answer.topics[0].partitions])
    expect(all(answer == answers[0] for answer in answers), f"ports differ: {answers}")
    if not env.judge:
        expect_equal("leaders", len({leader for _, leader, _ in answers[0]}), env.broker.shards)


def _alter(env, name, key, value, operation=0, validate_only=False):
    config = {"name": key, "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
    return env.cluster.conn().ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=validate_only).responses[0]


def _config(env, name, key):
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": [key]}
    answer = env.cluster.conn().ask("DescribeConfigs", 4, resources=[resource], include_synonyms=False, include_documentation=False)
    return answer.results[0].configs[0].value


def a015_altering_configs_on_trial_changes_nothing(env):
    name = env.cluster.create(1, retention_ms=5000)
    expect_equal("on trial", _alter(env, name, "retention.ms", "77", validate_only=True).error_code, 0)
    expect_equal("a fault on trial", _alter(env, name, "retention.ms", "x", validate_only=True).error_code, 40)
    expect_equal("retention.ms", _config(env, name, "retention.ms"), "5000")


def a016_changes_of_configs_are_refused_by_name(env):
    name = env.cluster.create(1)
    for key, value in [("no.such.config", "1"), ("segment.bytes", "abc"), ("min.insync.replicas", "0"), ("cleanup.policy", "compact,foo")]:
        answer = _alter(env, name, key, value)
        expect_equal(f"{key}={value}", answer.error_code, 40)
        expect(key in answer.error_message, f"the message does not name {key}: {answer.error_message}")
    expect_equal("null", _alter(env, name, "retention.ms", None).error_code, 42)
    expect_equal("taking away what is not set", _alter(env, name, "retention.ms", None, operation=1).error_code, 0)


def config_changes_outlive_a_kill(env):
    with env.own_broker() as own:
        name = own.cluster.create(1)
        expect_equal("the change", _alter(own, name, "retention.ms", "12345").error_code, 0)
        own.restart()
        expect_equal("retention.ms", _config(own, name, "retention.ms"), "12345")


def a010_once_a_port_names_a_leader_all_do(env):
    env.cluster.settle = False
    conns = [env.conn(env.port + shard) for shard in range(env.broker.shards)]
    for _ in range(10):
        name = _name()
        topic = {"name": name, "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
        correlation = env.cluster.conn().send("CreateTopics", 7, topics=[topic], timeout_ms=10_000, validate_only=False)
        deadline, named = time.monotonic() + 10, None
        while True:
            answers = [conn.ask("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics[0] for conn in conns]
            for answer in answers:
                expect(answer.error_code in (0, 3, 5), f"error {answer.error_code}")
                for part in answer.partitions:
                    # A leader of -1 without an error makes some clients stop for good.
                    expect(part.leader_id >= 0 or part.error_code == 5, f"leader {part.leader_id} with error {part.error_code}")
            have = [answer.error_code == 0 and len(answer.partitions) == 4 and all(p.error_code == 0 for p in answer.partitions) for answer in answers]
            if any(have) and named is None:
                named = time.monotonic()
            if all(have):
                break
            expect(named is None or time.monotonic() - named < 1, f"a second after one port named leaders, others do not: {have}")
            expect(time.monotonic() < deadline, "no leaders in 10 s")
        expect_equal("creation", env.cluster.conn().receive("CreateTopics", 7, correlation).topics[0].error_code, 0)
    for conn in conns:
        conn.close()


def a011_topics_of_the_first_moments_work(env):
    """Creations from the moment a fresh process begins to answer: each that was acknowledged is whole."""
    if env.judge:
        return
    fresh = broker.Corelane(shards=env.broker.shards)
    made = []
    try:
        fresh.spawn()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            name = _name()
            try:
                with env.conn(fresh.port, timeout=5) as conn:
                    topic = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
                    answer = conn.ask("CreateTopics", 7, topics=[topic], timeout_ms=5_000, validate_only=False).topics[0]
            except (Closed, Failed, OSError):
                continue
            # Not the controller, timed out, no broker yet: all make a client try again.
            expect(answer.error_code in (0, 5, 7, 14, 15, 38, 41), f"error {answer.error_code}: {answer.error_message}")
            if answer.error_code == 0:
                made.append(name)
        expect(len(made) > 5, f"only {len(made)} topics were made")
        cluster = Cluster(fresh.port)
        for name in made:
            cluster.learn(name, 3)
            for partition in range(3):
                cluster.produced(name, batch([name.encode()]), partition=partition)
                expect_equal("values", cluster.values(name, partition), [name.encode()])
        cluster.close()
    finally:
        fresh.__exit__()


def a012_a_wildcard_bind_is_never_advertised(env):
    if env.judge:
        return
    for host in ("0.0.0.0", "[::]"):
        port = broker.free_ports(env.broker.shards)
        running = broker.Corelane(shards=env.broker.shards, properties={"listeners": f"PLAINTEXT://{host}:{port}"})
        running.port = port
        try:
            running.start()
            with env.conn(port) as conn:
                hosts = {each.host for each in conn.ask("Metadata", 9, topics=[], allow_auto_topic_creation=False).brokers}
            expect(not hosts & {"0.0.0.0", "::", "[::]", ""}, f"{host} is advertised as {hosts}")
            # The ports answer a moment before that is said.
            deadline = time.monotonic() + 10
            while not all(each in running.tail() for each in hosts):
                expect(time.monotonic() < deadline, f"the start does not say that clients are told {hosts}: {running.tail()}")
                time.sleep(0.01)
        except broker.NotReady as refused:
            expect("advertised.listeners" in str(refused), f"{host} is refused without the setting's name: {refused}")
        finally:
            running.__exit__()


def a013_each_listener_is_told_its_own_addresses(env):
    shards = env.broker.shards
    inside, outside = broker.free_ports(shards), broker.free_ports(shards)
    while abs(inside - outside) < shards:
        outside = broker.free_ports(shards)
    if env.judge:
        return
    properties = {
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "advertised.listeners": f"INSIDE://inside.example:{inside},OUTSIDE://outside.example:{outside + 1000}",
    }
    running = broker.Corelane(shards=shards, properties=properties)
    running.port = inside
    try:
        running.start()
        for first, host, told in ((inside, "inside.example", inside), (outside, "outside.example", outside + 1000)):
            wanted = {(host, told + shard) for shard in range(shards)}
            for shard in range(shards):
                with env.conn(first + shard) as conn:
                    answer = conn.ask("Metadata", 9, topics=[], allow_auto_topic_creation=False)
                    expect_equal(f"Metadata on {host}", {(each.host, each.port) for each in answer.brokers}, wanted)
                    answer = conn.ask("DescribeCluster", 1, endpoint_type=1)
                    expect_equal(f"DescribeCluster on {host}", {(each.host, each.port) for each in answer.brokers}, wanted)
    finally:
        running.__exit__()


def a018_incremental_changes_are_validated_without_changing(env):
    topic = env.cluster.create(1, retention_ms=12_345)

    def alter(configs, validate_only):
        resource = {"resource_type": 2, "resource_name": topic, "configs": [{"name": n, "config_operation": o, "value": v} for n, o, v in configs]}
        return env.cluster.conn().ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=validate_only).responses[0]

    def value(name):
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
        return env.cluster.conn().ask("DescribeConfigs", 4, resources=[resource], include_synonyms=False, include_documentation=False).results[0].configs[0].value

    expect_equal("a good change, validated", alter([("retention.ms", 0, "777")], True).error_code, 0)
    expect_equal("retention.ms", value("retention.ms"), "12345")
    bad = alter([("retention.ms", 0, "never")], False)
    expect_equal("a bad value", bad.error_code, 40)
    expect("retention.ms" in bad.error_message, bad.error_message)
    # One bad key and nothing of the resource changes.
    expect_equal("one of two bad", alter([("segment.bytes", 0, "2000000"), ("no.such", 0, "1")], False).error_code, 40)
    expect_equal("segment.bytes", value("segment.bytes"), "1073741824")
    expect_equal("a good change", alter([("retention.ms", 0, "777")], False).error_code, 0)
    deadline = time.monotonic() + 10
    while value("retention.ms") != "777":
        expect(env.judge and time.monotonic() < deadline, f"retention.ms is {value('retention.ms')}")
    # A016: deleting what is not set is no error.
    expect_equal("deleting what is not set", alter([("flush.ms", 1, None)], False).error_code, 0)
    expect_equal("deleting what is set", alter([("retention.ms", 1, None)], False).error_code, 0)
    while value("retention.ms") != "604800000":
        expect(env.judge and time.monotonic() < deadline, f"retention.ms is {value('retention.ms')}")
