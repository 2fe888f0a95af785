"""What the tools of Apache Kafka print against a broker, as a transcript that two brokers can be compared by.

The recorded transcript is that of a real Apache Kafka (`tests/interop.py --broker kafka --record`). What must differ between two runs
(ports, ids, times, offsets of the metadata log) is replaced by a word; what Corelane answers otherwise on purpose is listed in `DIFFERENT`.
"""

import json
import re
import subprocess
from pathlib import Path

from . import cache

RECORDED = cache.TESTS / "judge" / "tools.transcript"

# Lines that are left out of the comparison, and why.
DIFFERENT = [
    # A Kafka of a new cluster keeps eligible leader replicas and sets this for all brokers; Corelane has no such feature.
    re.compile(r"^\s+min\.insync\.replicas=1 .*"),
    # Configs that only Corelane has.
    re.compile(r"^\s+(write\.caching|validate\.compressed\.records)=.*"),
    # APIs and features that Corelane does not have yet.
    re.compile(r".*UNSUPPORTED.*"),
    re.compile(r"^Feature: (group|kraft|share|streams|transaction|eligible\.leader\.replicas)\.version.*"),
]

WORDS = [
    (r"127\.0\.0\.1:\d+", "HOST:PORT"),
    (r"TopicId: \S+", "TopicId: ID"),
    (r"Cluster ID: \S+", "Cluster ID: ID"),
    (r"ClusterId:(\s+)\S+", r"ClusterId:\1ID"),
    (r"(LeaderEpoch|HighWatermark):(\s+)\d+", r"\1:\2N"),
    (r'"logDir": "[^"]+"', '"logDir": "DIR"'),
    (r'"log_dirs": \["/[^"]+"\]', '"log_dirs": ["DIR"]'),
    # The controller's listener; Corelane has none and tells that of its clients.
    (r"(CONTROLLER|PLAINTEXT)://", "LISTENER://"),
    # Corelane's nodes have the number of their machine for a rack.
    (r"rack: \w+", "rack: R"),
    (r"(Epoch: )\d+", r"\1N"),
    (r"\b1[67]\d{11}\b", "TIME"),
    # A producer id, in the line of a producer.
    (r"^\d+\s*\t(\d+\s+-1\s+\d+\s+TIME\tNone)", r"ID\t\1"),
    (r"^(\d+)\s+(A{22})\s+\d+\s+(\d+)\s+TIME\s+TIME\s+(\w+)", r"\1 \2 N \3 TIME TIME \4"),
]

# Tool, its arguments, standard input; {} is the bootstrap server, @name a file of FILES.
STEPS = [
    ("TopicCommand", "--bootstrap-server {} --create --topic tt --partitions 2 --replication-factor 1 --config retention.ms=86400000"),
    ("ConfigCommand", "--bootstrap-server {} --alter --topic tt --add-config max.message.bytes=2000,cleanup.policy=[delete,compact]"),
    ("ConfigCommand", "--bootstrap-server {} --describe --topic tt"),
    ("ConfigCommand", "--bootstrap-server {} --alter --topic tt --delete-config max.message.bytes,cleanup.policy"),
    ("ConfigCommand", "--bootstrap-server {} --describe --topic tt"),
    ("ConfigCommand", "--bootstrap-server {} --alter --topic tt --add-config retention.ms=soon"),
    ("ConfigCommand", "--bootstrap-server {} --alter --topic nope --add-config retention.ms=1"),
    ("ConfigCommand", "--bootstrap-server {} --describe --topic tt --all"),
    ("ConfigCommand", "--bootstrap-server {} --alter --broker 0 --add-config message.max.bytes=1000000"),
    ("ConfigCommand", "--bootstrap-server {} --alter --broker-defaults --add-config log.retention.ms=86400001"),
    ("ConfigCommand", "--bootstrap-server {} --describe --broker 0"),
    ("ConfigCommand", "--bootstrap-server {} --describe --broker-defaults"),
    ("ConfigCommand", "--bootstrap-server {} --alter --broker 0 --add-config num.partitions=3"),
    ("ConfigCommand", "--bootstrap-server {} --alter --broker 0 --delete-config message.max.bytes"),
    ("ConfigCommand", "--bootstrap-server {} --alter --broker-defaults --delete-config log.retention.ms"),
    ("ConsoleProducer", "--bootstrap-server {} --topic tt --reader-property parse.key=true --reader-property key.separator=:", "a:1\na:2\na:3\na:4\na:5\n"),
    ("GetOffsetShell", "--bootstrap-server {} --topic tt"),
    ("DeleteRecordsCommand", "--bootstrap-server {} --offset-json-file @delete"),
    ("GetOffsetShell", "--bootstrap-server {} --topic tt --time earliest"),
    ("LogDirsCommand", "--bootstrap-server {} --describe --broker-list 0 --topic-list tt"),
    ("TransactionsCommand", "--bootstrap-server {} describe-producers --topic tt --partition 0"),
    ("BrokerApiVersionsCommand", "--bootstrap-server {}"),
    ("ClusterTool", "cluster-id --bootstrap-server {}"),
    ("ClusterTool", "unregister --bootstrap-server {} --id 77"),
    ("FeatureCommand", "--bootstrap-server {} describe"),
    ("FeatureCommand", "--bootstrap-server {} downgrade --feature metadata.version=29"),
    ("MetadataQuorumCommand", "--bootstrap-server {} describe --status"),
    ("MetadataQuorumCommand", "--bootstrap-server {} describe --replication"),
    ("LeaderElectionCommand", "--bootstrap-server {} --election-type preferred --topic tt --partition 0"),
    ("LeaderElectionCommand", "--bootstrap-server {} --election-type unclean --all-topic-partitions"),
    ("LeaderElectionCommand", "--bootstrap-server {} --election-type preferred --topic nope --partition 0"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --execute --reassignment-json-file @stay"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --verify --reassignment-json-file @stay"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --list"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --execute --reassignment-json-file @away"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --cancel --reassignment-json-file @stay"),
    ("reassign.ReassignPartitionsCommand", "--bootstrap-server {} --generate --topics-to-move-json-file @topics --broker-list 0"),
    ("ClientMetricsCommand", "--bootstrap-server {} --alter --name sub --metrics org.apache.kafka. --interval 10000 --match client_id=a.*"),
    ("ClientMetricsCommand", "--bootstrap-server {} --list"),
    ("ClientMetricsCommand", "--bootstrap-server {} --describe"),
    ("ClientMetricsCommand", "--bootstrap-server {} --delete --name sub"),
    ("TopicCommand", "--bootstrap-server {} --delete --topic tt"),
]

FILES = {
    "delete": {"partitions": [{"topic": "tt", "partition": 0, "offset": 3}, {"topic": "tt", "partition": 1, "offset": 100}], "version": 1},
    "stay": {"version": 1, "partitions": [{"topic": "tt", "partition": 0, "replicas": [0]}]},
    "away": {"version": 1, "partitions": [{"topic": "tt", "partition": 0, "replicas": [77]}]},
    "topics": {"topics": [{"topic": "tt"}], "version": 1},
}


def commands():
    return [f"{tool} {arguments}" for tool, arguments, *_ in STEPS]


def run_step(number, bootstrap, scratch):
    """The lines that one tool prints, and its exit code."""
    tool, arguments, *stdin = STEPS[number]
    words = []
    for word in arguments.replace("{}", bootstrap).split():
        if word.startswith("@"):
            path = Path(scratch) / f"{word[1:]}.json"
            path.write_text(json.dumps(FILES[word[1:]]))
            word = str(path)
        words.append(word)
    command = [*cache.kafka_tool(tool), *words]
    done = subprocess.run(command, input=(stdin or [""])[0], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90)
    lines = [normal(line.replace(str(scratch), "SCRATCH")) for line in done.stdout.splitlines()]
    # Where in the tool an error was met says nothing of the broker.
    lines = [line for line in lines if line.strip() and not line.startswith(("\tat ", "\t... "))]
    return [*lines, f"exit code {done.returncode}"]


def normal(line):
    if line.startswith("{"):
        # The order of keys and of lists is a hash's.
        line = json.dumps(json.loads(line, object_hook=_sorted), sort_keys=True)
    for pattern, word in WORDS:
        line = re.sub(pattern, word, line)
    return line.rstrip()


def _sorted(of):
    return {key: sorted(value, key=json.dumps) if isinstance(value, list) else value for key, value in of.items()}


def compared(command, lines, others):
    """What of a step's lines is compared. The order of configs and of topics is a hash's in Kafka."""
    kept = [line for line in lines if not any(pattern.match(line) for pattern in DIFFERENT)]
    if command.startswith("BrokerApiVersionsCommand"):
        # APIs that one of them does not have.
        names = {line.split(":")[0] for line in others if "UNSUPPORTED" not in line}
        kept = [line for line in kept if not line.startswith("\t") or line.split(":")[0] in names]
    return sorted(line.rstrip(",") for line in kept)


def record(bootstrap, scratch):
    text = []
    for number, command in enumerate(commands()):
        text.append(f"$ {command}")
        text += [f"  {line}" for line in run_step(number, bootstrap, scratch)]
    RECORDED.write_text("\n".join(text) + "\n")


def recorded():
    """Command -> the lines that Apache Kafka printed."""
    steps, lines = [], None
    for line in RECORDED.read_text().splitlines():
        if line.startswith("$ "):
            lines = []
            steps.append((line[2:], lines))
        else:
            lines.append(line[2:])
    return steps
