"""confluent-kafka (librdkafka). See ../README.md."""

import base64
import json
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


def unpack(text):
    return None if text is None else base64.b64decode(text)


def pack(data):
    return None if data is None else base64.b64encode(data).decode()


def create(bootstrap, topic, partitions):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, int(partitions), 1)], operation_timeout=20).values():
        future.result(30)


def produce(bootstrap, topic, codec, plan):
    # Default settings but idempotence, which librdkafka leaves off: the other libraries have it on.
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5})
    faults = []

    def delivered(index):
        def report(error, message):
            if error is not None:
                faults.append(f"{index}: {error}")
            else:
                print(index, message.partition(), message.offset())

        return report

    for index, line in enumerate(open(plan)):
        record = json.loads(line)
        headers = [(name, unpack(value)) for name, value in record["headers"]]
        while True:
            try:
                producer.produce(
                    topic,
                    key=unpack(record["key"]),
                    value=unpack(record["value"]),
                    headers=headers,
                    partition=record["partition"],
                    on_delivery=delivered(index),
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    if left or faults:
        raise SystemExit(f"{left} not delivered, {faults[:5]}")


def consume(bootstrap, *wanted):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"})
    ends = {}
    for each in wanted:
        topic, partition, end = each.rsplit(":", 2)
        if int(end) > 0:
            ends[(topic, int(partition))] = int(end)
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
    while ends:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit(f"nothing for 30 s, waiting for {ends}")
        if message.error():
            raise KafkaException(message.error())
        place = (message.topic(), message.partition())
        record = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "key": pack(message.key()),
            "value": pack(message.value()),
            "headers": [[name, pack(value)] for name, value in message.headers() or []],
        }
        print(json.dumps(record))
        if place in ends and message.offset() + 1 >= ends[place]:
            del ends[place]
    consumer.close()


if __name__ == "__main__":
    {"create": create, "produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
