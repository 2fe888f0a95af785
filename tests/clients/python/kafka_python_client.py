"""kafka-python (pure Python). See ../README.md."""

import base64
import json
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic


def unpack(text):
    return None if text is None else base64.b64decode(text)


def pack(data):
    return None if data is None else base64.b64encode(data).decode()


def create(bootstrap, topic, partitions):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, num_partitions=int(partitions), replication_factor=1)])
    admin.close()


def produce(bootstrap, topic, codec, plan):
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
    sent = []
    for line in open(plan):
        record = json.loads(line)
        headers = [(name, unpack(value)) for name, value in record["headers"]]
        partition = None if record["partition"] < 0 else record["partition"]
        sent.append(producer.send(topic, key=unpack(record["key"]), value=unpack(record["value"]), headers=headers, partition=partition))
    producer.flush(60)
    for index, future in enumerate(sent):
        answer = future.get(30)
        print(index, answer.partition, answer.offset)
    producer.close()


def consume(bootstrap, *wanted):
    ends = {}
    for each in wanted:
        topic, partition, end = each.rsplit(":", 2)
        if int(end) > 0:
            ends[TopicPartition(topic, int(partition))] = int(end)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none", consumer_timeout_ms=30_000)
    consumer.assign(list(ends))
    for place in ends:
        consumer.seek(place, 0)
    for message in consumer:
        record = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "key": pack(message.key),
            "value": pack(message.value),
            "headers": [[name, pack(value)] for name, value in message.headers],
        }
        print(json.dumps(record))
        place = TopicPartition(message.topic, message.partition)
        if place in ends and message.offset + 1 >= ends[place]:
            del ends[place]
        if not ends:
            break
    if ends:
        raise SystemExit(f"nothing for 30 s, waiting for {ends}")
    consumer.close()


if __name__ == "__main__":
    {"create": create, "produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
