//! The bytes of records: Kafka's own metadata records where Kafka has one, framed as in `__cluster_metadata`; types of our
//! own, from 1000 up, for what Kafka does not have (processes with shards, the cluster's id).

use crate::model::{NodeId, ShardIndex, TopicPartition, limit};
use crate::wire::msg::config_record::ConfigRecord;
use crate::wire::msg::feature_level_record::FeatureLevelRecord;
use crate::wire::msg::no_op_record::NoOpRecord;
use crate::wire::msg::partition_change_record::PartitionChangeRecord;
use crate::wire::msg::partition_record::PartitionRecord;
use crate::wire::msg::producer_ids_record::ProducerIdsRecord;
use crate::wire::msg::remove_topic_record::RemoveTopicRecord;
use crate::wire::msg::topic_record::TopicRecord;
use crate::wire::{Malformed, Reader, Writer, read_record_head, write_record_head};

use super::record::{Endpoint, Partition, PartitionChange, Record, Resource, ShardEndpoints};

/// Our own record types.
const CLUSTER: i16 = 1000;
const PROCESS: i16 = 1001;

/// "The leader did not change" of a PartitionChangeRecord.
const NO_LEADER_CHANGE: i32 = -2;

impl Record {
    /// Appends the record, framed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer::over(std::mem::take(out));
        match self {
            Record::Cluster { id } => {
                write_record_head(&mut w, CLUSTER, 0);
                w.uuid(*id);
            }
            Record::Topic { name, id } => {
                write_record_head(&mut w, TopicRecord::API_KEY, 0);
                TopicRecord {
                    name: (&**name).into(),
                    topic_id: *id,
                }
                .encode(&mut w, 0);
            }
            Record::Partition { tp, state } => {
                write_record_head(&mut w, PartitionRecord::API_KEY, 0);
                PartitionRecord {
                    partition_id: tp.partition,
                    topic_id: tp.topic,
                    replicas: numbers(&state.replicas),
                    isr: numbers(&state.isr),
                    leader: state.leader.0,
                    leader_epoch: state.leader_epoch,
                    partition_epoch: state.partition_epoch,
                    ..Default::default()
                }
                .encode(&mut w, 0);
            }
            Record::PartitionChange { tp, change } => {
                write_record_head(&mut w, PartitionChangeRecord::API_KEY, 0);
                PartitionChangeRecord {
                    partition_id: tp.partition,
                    topic_id: tp.topic,
                    replicas: change.replicas.as_deref().map(numbers),
                    isr: change.isr.as_deref().map(numbers),
                    leader: change.leader.map_or(NO_LEADER_CHANGE, |leader| leader.0),
                    ..Default::default()
                }
                .encode(&mut w, 0);
            }
            Record::RemoveTopic { id } => {
                write_record_head(&mut w, RemoveTopicRecord::API_KEY, 0);
                RemoveTopicRecord { topic_id: *id }.encode(&mut w, 0);
            }
            Record::Config {
                resource,
                name,
                key,
                value,
            } => {
                write_record_head(&mut w, ConfigRecord::API_KEY, 0);
                ConfigRecord {
                    resource_type: resource.code(),
                    resource_name: name.as_str().into(),
                    name: key.as_str().into(),
                    value: value.as_deref().map(Into::into),
                }
                .encode(&mut w, 0);
            }
            Record::ProducerIds { node, next } => {
                write_record_head(&mut w, ProducerIdsRecord::API_KEY, 0);
                ProducerIdsRecord {
                    broker_id: node.0,
                    broker_epoch: -1,
                    next_producer_id: *next,
                }
                .encode(&mut w, 0);
            }
            Record::Process {
                process,
                incarnation,
                epoch,
                rack,
                shards,
            } => {
                write_record_head(&mut w, PROCESS, 0);
                w.i32(*process);
                w.uuid(*incarnation);
                w.i64(*epoch);
                w.nullable_string(rack.as_deref(), true);
                w.array(shards, |w, shard| {
                    w.u16(shard.shard.0);
                    w.array(&shard.endpoints, |w, endpoint| {
                        w.string(&endpoint.listener);
                        w.string(&endpoint.host);
                        w.u16(endpoint.port);
                    });
                });
            }
            Record::Feature { name, level } => {
                write_record_head(&mut w, FeatureLevelRecord::API_KEY, 0);
                FeatureLevelRecord {
                    name: name.as_str().into(),
                    feature_level: *level,
                }
                .encode(&mut w, 0);
            }
            Record::NoOp => {
                write_record_head(&mut w, NoOpRecord::API_KEY, 0);
                NoOpRecord {}.encode(&mut w, 0);
            }
        }
        *out = w.into_bytes();
    }

    /// Reads one record that fills `bytes`. An unknown type is an error: it was written by a newer version, and an image
    /// without it would be wrong.
    pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
        let mut r = Reader::new(bytes);
        let (key, version) = read_record_head(&mut r)?;
        let r = &mut r;
        let record = match key {
            TopicRecord::API_KEY => {
                let m = TopicRecord::decode(r, version)?;
                Record::Topic {
                    name: m.name.as_ref().into(),
                    id: m.topic_id,
                }
            }
            PartitionRecord::API_KEY => {
                let m = PartitionRecord::decode(r, version)?;
                Record::Partition {
                    tp: TopicPartition {
                        topic: m.topic_id,
                        partition: m.partition_id,
                    },
                    state: Partition {
                        replicas: nodes(&m.replicas),
                        isr: nodes(&m.isr),
                        leader: NodeId(m.leader),
                        leader_epoch: m.leader_epoch,
                        partition_epoch: m.partition_epoch,
                    },
                }
            }
            PartitionChangeRecord::API_KEY => {
                let m = PartitionChangeRecord::decode(r, version)?;
                Record::PartitionChange {
                    tp: TopicPartition {
                        topic: m.topic_id,
                        partition: m.partition_id,
                    },
                    change: PartitionChange {
                        replicas: m.replicas.as_deref().map(nodes),
                        isr: m.isr.as_deref().map(nodes),
                        leader: (m.leader != NO_LEADER_CHANGE).then_some(NodeId(m.leader)),
                    },
                }
            }
            RemoveTopicRecord::API_KEY => Record::RemoveTopic {
                id: RemoveTopicRecord::decode(r, version)?.topic_id,
            },
            ConfigRecord::API_KEY => {
                let m = ConfigRecord::decode(r, version)?;
                let Some(resource) = Resource::from_code(m.resource_type) else {
                    r.fail("a config of an unknown kind of resource");
                    return Err(r.finish().expect_err("it failed"));
                };
                Record::Config {
                    resource,
                    name: m.resource_name.into_owned(),
                    key: m.name.into_owned(),
                    value: m.value.map(|value| value.into_owned()),
                }
            }
            ProducerIdsRecord::API_KEY => {
                let m = ProducerIdsRecord::decode(r, version)?;
                Record::ProducerIds {
                    node: NodeId(m.broker_id),
                    next: m.next_producer_id,
                }
            }
            FeatureLevelRecord::API_KEY => {
                let m = FeatureLevelRecord::decode(r, version)?;
                Record::Feature {
                    name: m.name.into_owned(),
                    level: m.feature_level,
                }
            }
            NoOpRecord::API_KEY => {
                NoOpRecord::decode(r, version)?;
                Record::NoOp
            }
            CLUSTER if version == 0 => Record::Cluster { id: r.uuid() },
            PROCESS if version == 0 => process(r),
            _ => {
                r.fail("a record of an unknown type or version: written by a newer release?");
                Record::NoOp
            }
        };
        if r.remaining() > 0 {
            r.fail("bytes behind a record");
        }
        r.finish()?;
        Ok(record)
    }
}

fn process(r: &mut Reader<'_>) -> Record {
    let process = r.i32();
    let incarnation = r.uuid();
    let epoch = r.i64();
    let rack = r.nullable_string(true).map(|rack| rack.into_owned());
    let shards = r.array(6, |r| ShardEndpoints {
        shard: ShardIndex(r.u16()),
        endpoints: r.array(6, |r| Endpoint {
            listener: r.string().into_owned(),
            host: r.string().into_owned(),
            port: r.u16(),
        }),
    });
    if shards.len() > limit::SHARDS_MAX {
        r.fail("more shards than a process can have");
    }
    Record::Process {
        process,
        incarnation,
        epoch,
        rack,
        shards,
    }
}

fn numbers(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

fn nodes(numbers: &[i32]) -> Vec<NodeId> {
    numbers.iter().map(|number| NodeId(*number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rng, Uuid};

    fn samples() -> Vec<Record> {
        let tp = TopicPartition {
            topic: Uuid([3; 16]),
            partition: 5,
        };
        vec![
            Record::Cluster { id: Uuid([1; 16]) },
            Record::Topic {
                name: "orders".into(),
                id: tp.topic,
            },
            Record::Partition {
                tp,
                state: Partition {
                    replicas: vec![NodeId(1), NodeId(1000)],
                    isr: vec![NodeId(1)],
                    leader: NodeId(1),
                    leader_epoch: 4,
                    partition_epoch: 9,
                },
            },
            Record::PartitionChange {
                tp,
                change: PartitionChange {
                    replicas: None,
                    isr: Some(vec![]),
                    leader: Some(NodeId::NONE),
                },
            },
            Record::PartitionChange {
                tp,
                change: PartitionChange::default(),
            },
            Record::RemoveTopic { id: tp.topic },
            Record::Config {
                resource: Resource::Topic,
                name: "orders".into(),
                key: "retention.ms".into(),
                value: Some(String::new()),
            },
            Record::Config {
                resource: Resource::Broker,
                name: String::new(),
                key: "x".into(),
                value: None,
            },
            Record::ProducerIds {
                node: NodeId(2),
                next: 3000,
            },
            Record::Process {
                process: 2,
                incarnation: Uuid([8; 16]),
                epoch: -1,
                rack: Some("r1".into()),
                shards: vec![ShardEndpoints {
                    shard: ShardIndex(0),
                    endpoints: vec![Endpoint {
                        listener: "PLAINTEXT".into(),
                        host: "h".into(),
                        port: 65535,
                    }],
                }],
            },
            Record::Feature {
                name: "metadata.version".into(),
                level: 29,
            },
            Record::NoOp,
        ]
    }

    fn bytes(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    #[test]
    fn every_record_comes_back_from_its_bytes() {
        for record in samples() {
            assert_eq!(Record::decode(&bytes(&record)), Ok(record));
        }
    }

    #[test]
    fn kafkas_records_have_kafkas_bytes() {
        // Frame version 1, type 2, version 0, compact string (length + 1), uuid, no tagged fields: from TopicRecord.json.
        let topic = Record::Topic {
            name: "ab".into(),
            id: Uuid([7; 16]),
        };
        let mut expected = vec![1, 2, 0, 3, b'a', b'b'];
        expected.extend([7; 16]);
        expected.push(0);
        assert_eq!(bytes(&topic), expected);
        // Type 15: broker id, broker epoch -1, next id, no tagged fields.
        let ids = Record::ProducerIds {
            node: NodeId(1),
            next: 1000,
        };
        let mut expected = vec![1, 15, 0, 0, 0, 0, 1];
        expected.extend([0xff; 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 3, 0xe8, 0]);
        assert_eq!(bytes(&ids), expected);
    }

    #[test]
    fn damaged_records_are_errors_and_never_panic() {
        let mut rng = Rng::seeded(11);
        for record in samples() {
            let whole = bytes(&record);
            for cut in 0..whole.len() {
                assert!(
                    Record::decode(&whole[..cut]).is_err(),
                    "{record:?} cut to {cut}"
                );
            }
            for _ in 0..2000 {
                let mut broken = whole.clone();
                let at = rng.below(broken.len() as u64) as usize;
                broken[at] = rng.next_u64() as u8;
                let _ = Record::decode(&broken);
            }
        }
        assert!(Record::decode(&[1, 99, 0]).is_err());
    }
}
