//! Sends what no client should: noise, frames that end too early, requests with flipped bytes, claims of absurd sizes. Its
//! connections close, or are answered where what arrived happens to make sense; nobody else notices.

use super::{Ctx, Input};
use crate::model::{ConnId, Instant};
use crate::sim::net::End;
use crate::sim::plan::{VandalPlan, pick};
use crate::sim::trace::sum;
use crate::wire::msg::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use crate::wire::msg::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::msg::init_producer_id_request::InitProducerIdRequest;
use crate::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use crate::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::msg::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use crate::wire::msg::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::{ApiKey, Records, RequestHeader, Writer};

/// Bytes of a request's header that say what it is: key and version.
const KIND_BYTES: usize = 4;

/// What becomes of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    /// The broker closes it.
    Close,
    /// The broker closes it, or answers, or (acks=0, a long wait) does neither.
    Anything,
}

pub(crate) struct Vandal {
    plan: VandalPlan,
    open: Option<(ConnId, Expect, Instant)>,
}

impl Vandal {
    pub fn new(plan: VandalPlan) -> Vandal {
        Vandal { plan, open: None }
    }

    pub fn is_done(&self) -> bool {
        self.open.is_none()
    }

    pub fn waits_for(&self) -> String {
        format!("the end of {:?}", self.open)
    }

    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match input {
            Input::Wake => {}
            Input::Bytes(conn, bytes) => self.answered(conn, &bytes, ctx),
            Input::Gone(conn) => {
                if self.open.is_some_and(|(open, ..)| open == conn) {
                    self.open = None;
                }
            }
        }
        match self.open {
            Some((conn, Expect::Anything, since)) if ctx.calm || since.after_ms(50) <= ctx.now => {
                ctx.net.end(conn, End::Closed, ctx.now, ctx.queue);
                self.open = None;
            }
            Some(_) => {}
            None if ctx.calm => return,
            None => self.act(ctx),
        }
        let (from, to) = self.plan.pause_us;
        let pause = ctx.rng.range(from, to);
        ctx.wake_in(pause);
    }

    fn answered(&mut self, conn: ConnId, bytes: &[u8], ctx: &mut Ctx<'_>) {
        match self.open {
            Some((open, Expect::Close, _)) if open == conn => {
                ctx.fail(format!("garbage got {} bytes of an answer", bytes.len()));
            }
            _ => {}
        }
    }

    fn act(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.shards == 0 {
            return;
        }
        let shard = ctx.rng.below(ctx.shards as u64) as usize;
        let conn = ctx.net.connect(ctx.me, shard, ctx.now, ctx.queue);
        let kind = ctx.rng.below(6);
        let mut frame = self.request(ctx);
        let mut expect = Expect::Close;
        let mut end = None;
        match kind {
            // Noise: no API has a number like this.
            0 => {
                let len = ctx.rng.range(1, 300);
                frame = (0..len).map(|_| ctx.rng.below(256) as u8).collect();
                frame[0] |= 0x40;
            }
            // A request that ends too early.
            1 => frame.truncate(ctx.rng.below(frame.len() as u64) as usize),
            // Some bytes are others, but not what kind of request it is.
            2 | 3 => {
                for _ in 0..ctx.rng.range(1, 5) {
                    let at = ctx.rng.range(KIND_BYTES as u64, frame.len() as u64) as usize;
                    frame[at] = ctx.rng.below(256) as u8;
                }
                expect = Expect::Anything;
            }
            // Half a frame, and then nothing more.
            4 => end = Some(pick(ctx.rng, &[End::Closed, End::Broken, End::Half])),
            // A size that no frame has.
            _ => {}
        }
        let mut bytes = match kind {
            5 => pick(ctx.rng, &[-1, i32::MIN, i32::MAX])
                .to_be_bytes()
                .to_vec(),
            _ => (frame.len() as u32).to_be_bytes().to_vec(),
        };
        bytes.extend_from_slice(&frame);
        if end.is_some() {
            bytes.truncate(ctx.rng.range(1, bytes.len() as u64) as usize);
        }
        ctx.trace.event(
            ctx.now,
            "vandal",
            &[ctx.me as u64, conn.0, kind, sum(&bytes)],
        );
        ctx.net.send(conn, bytes, ctx.now, ctx.queue);
        if let Some(how) = end {
            ctx.net.end(conn, how, ctx.now, ctx.queue);
            if how != End::Half {
                return;
            }
        }
        self.open = Some((conn, expect, ctx.now));
    }

    /// A request that would be right, and that changes nothing when it is taken for another one of its kind.
    fn request(&self, ctx: &mut Ctx<'_>) -> Vec<u8> {
        let name = pick(ctx.rng, &["a", "b", "c", "nobody"]);
        let partition = ctx.rng.below(3) as i32;
        let (api, version) = pick(
            ctx.rng,
            &[
                (ApiKey::Metadata, 12),
                (ApiKey::Metadata, 1),
                (ApiKey::Fetch, 11),
                (ApiKey::ListOffsets, 5),
                (ApiKey::ListOffsets, 9),
                (ApiKey::OffsetForLeaderEpoch, 4),
                (ApiKey::DescribeConfigs, 4),
                (ApiKey::InitProducerId, 4),
                (ApiKey::Produce, 8),
                (ApiKey::Produce, 11),
            ],
        );
        let header = RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id: 1,
            client_id: Some("vandal".into()),
        };
        let mut w = Writer::new();
        header.encode(&mut w);
        match api {
            ApiKey::Fetch => FetchRequest {
                replica_id: -1,
                max_wait_ms: 20,
                min_bytes: 1,
                max_bytes: 10_000,
                session_epoch: -1,
                topics: vec![FetchTopic {
                    topic: name.into(),
                    partitions: vec![FetchPartition {
                        partition,
                        partition_max_bytes: 1_000,
                        ..Default::default()
                    }],
                    ..Default::default()
                }],
                ..Default::default()
            }
            .encode(&mut w, version),
            ApiKey::ListOffsets => ListOffsetsRequest {
                replica_id: -1,
                topics: vec![ListOffsetsTopic {
                    name: name.into(),
                    partitions: vec![ListOffsetsPartition {
                        partition_index: partition,
                        current_leader_epoch: -1,
                        timestamp: -1,
                    }],
                }],
                ..Default::default()
            }
            .encode(&mut w, version),
            ApiKey::OffsetForLeaderEpoch => OffsetForLeaderEpochRequest {
                replica_id: -1,
                topics: vec![OffsetForLeaderTopic {
                    topic: name.into(),
                    partitions: vec![OffsetForLeaderPartition {
                        partition,
                        current_leader_epoch: -1,
                        leader_epoch: 0,
                    }],
                }],
            }
            .encode(&mut w, version),
            ApiKey::DescribeConfigs => DescribeConfigsRequest {
                resources: vec![DescribeConfigsResource {
                    resource_type: 2,
                    resource_name: name.into(),
                    configuration_keys: None,
                }],
                ..Default::default()
            }
            .encode(&mut w, version),
            ApiKey::InitProducerId => InitProducerIdRequest {
                producer_id: -1,
                producer_epoch: -1,
                transaction_timeout_ms: 60_000,
                ..Default::default()
            }
            .encode(&mut w, version),
            ApiKey::Produce => {
                // No batch has a checksum that fits noise.
                let noise: Vec<u8> = (0..ctx.rng.range(61, 200))
                    .map(|_| ctx.rng.below(256) as u8)
                    .collect();
                ProduceRequest {
                    transactional_id: None,
                    acks: 1,
                    timeout_ms: 100,
                    topic_data: vec![TopicProduceData {
                        name: name.into(),
                        partition_data: vec![PartitionProduceData {
                            index: partition,
                            records: Records::Bytes(noise.into()),
                        }],
                        ..Default::default()
                    }],
                }
                .encode(&mut w, version)
            }
            _ => MetadataRequest {
                topics: Some(vec![MetadataRequestTopic {
                    name: Some(name.into()),
                    ..Default::default()
                }]),
                ..Default::default()
            }
            .encode(&mut w, version),
        }
        w.into_bytes()
    }
}
