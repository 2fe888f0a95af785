//! Produce (0), versions 3 to 13; KIP-98, KIP-467, KIP-951, KIP-516.
//!
//! Checks come in Kafka's order. Each partition is answered on its own: acks=1 when its bytes are written, acks=all when
//! the high watermark has passed them. Differs from Kafka on purpose: null records are INVALID_RECORD (Kafka does not
//! answer), and garbage in a batch is never UNKNOWN_SERVER_ERROR.

use std::borrow::Cow;

use super::{Call, answer};
use crate::batch::{BatchError, Codec, RecordError, check_produce, first_batch};
use crate::log::AppendAs;
use crate::meta::is_internal;
use crate::model::{ConnId, ErrorCode, NodeId, SlotId, TopicId, TopicPartition};
use crate::shard::conn::ReplyTo;
use crate::shard::hosted::EndWait;
use crate::shard::park::{ParkId, Parked};
use crate::shard::{Actions, Chunk, Shard};
use crate::wire::msg::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::msg::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse,
    ProduceResponse, TopicProduceResponse,
};
use crate::wire::{ApiKey, Malformed, Reader, Records, RequestHeader};

const ACKS_ALL: i16 = -1;

/// The client id of Kafka's tools, the only one that may write to internal topics.
const ADMIN_CLIENT: &str = "__admin_client";

/// From this version on topics come by id.
const TOPIC_IDS_SINCE: i16 = 13;

/// What became of one partition.
#[derive(Debug)]
struct Item {
    topic: u32,
    index: i32,
    tp: TopicPartition,
    error: ErrorCode,
    base_offset: i64,
    log_append_time: i64,
    log_start: i64,
    /// The end that the answer waits for, exclusive, while it does.
    waits_for: Option<i64>,
    detail: Option<Box<BatchError>>,
    /// Where the leader is, when it is not here.
    leader: Option<(NodeId, i32)>,
}

#[derive(Debug)]
struct TopicOf {
    name: String,
    id: TopicId,
}

/// A Produce that waits for its ends.
#[derive(Debug)]
pub struct ProduceWait {
    call: Call,
    topics: Vec<TopicOf>,
    items: Vec<Item>,
    pending: usize,
}

impl Shard {
    pub(super) fn produce(
        &mut self,
        conn: ConnId,
        header: &RequestHeader<'_>,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<(), Malformed> {
        let version = header.api_version;
        let request = ProduceRequest::decode(r, version)?;
        let slot = if request.acks == 0 {
            None
        } else {
            self.conns.take_slot(conn, ApiKey::Produce)
        };
        let to = slot.unwrap_or(ReplyTo {
            conn,
            slot: SlotId(0),
        });
        let call = Call {
            to,
            api: ApiKey::Produce,
            version,
            correlation_id: header.correlation_id,
        };
        let admin = header.client_id.as_deref() == Some(ADMIN_CLIENT);
        let (topics, items) = self.produce_all(call, admin, &request);
        if slot.is_none() {
            // acks=0 has no answer: an error closes the connection, so that the client finds out.
            if items.iter().any(|item| item.error.is_error()) {
                self.conns.close(conn, actions);
            }
            self.conns.unanswered(conn, actions);
            return Ok(());
        }
        let pending = items.iter().filter(|item| item.waits_for.is_some()).count();
        let wait = ProduceWait {
            call,
            topics,
            items,
            pending,
        };
        if pending == 0 {
            self.produce_answer(wait, actions);
            return Ok(());
        }
        let id = self.parked.reserve();
        for (index, item) in (0..).zip(&wait.items) {
            let Some(end) = item.waits_for else { continue };
            let hosted = self.hosted.get_mut(&item.tp).expect("it was appended to");
            let waits = if request.acks == ACKS_ALL {
                &mut hosted.committed_waits
            } else {
                &mut hosted.written_waits
            };
            waits.push_back(EndWait {
                end,
                park: id,
                item: index,
            });
        }
        let deadline = self.now.mono.after_ms(request.timeout_ms.max(0) as u64);
        self.parked.put(id, Parked::Produce(wait), deadline);
        Ok(())
    }

    /// Appends partition by partition; failing one does not affect the others.
    fn produce_all(
        &mut self,
        call: Call,
        admin: bool,
        request: &ProduceRequest<'_>,
    ) -> (Vec<TopicOf>, Vec<Item>) {
        let mut topics = Vec::with_capacity(request.topic_data.len());
        let mut items: Vec<Item> = Vec::with_capacity(request.topic_data.len());
        for (topic, data) in (0..).zip(&request.topic_data) {
            let name = if call.version < TOPIC_IDS_SINCE {
                data.name.to_string()
            } else {
                String::new()
            };
            topics.push(TopicOf {
                name,
                id: data.topic_id,
            });
            let first = items.len();
            for partition in &data.partition_data {
                // The same partition twice in one request is answered once, as Kafka does.
                if items[first..]
                    .iter()
                    .any(|item| item.index == partition.index)
                {
                    continue;
                }
                let mut item = Item::new(topic, partition.index);
                let appended = self.produce_one(call, admin, request, (data, partition), &mut item);
                if let Err(refusal) = appended {
                    item.refuse(refusal);
                    self.counters.produce_failed += 1;
                }
                items.push(item);
            }
        }
        (topics, items)
    }

    /// Checks and appends the batch of one partition.
    fn produce_one(
        &mut self,
        call: Call,
        admin: bool,
        request: &ProduceRequest<'_>,
        (data, partition): (&TopicProduceData<'_>, &PartitionProduceData<'_>),
        item: &mut Item,
    ) -> Result<(), Refusal> {
        let (topic, unknown) = if call.version >= TOPIC_IDS_SINCE {
            (self.image.topic(data.topic_id), ErrorCode::UnknownTopicId)
        } else {
            (
                self.image.topic_by_name(&data.name),
                ErrorCode::UnknownTopicOrPartition,
            )
        };
        let topic = topic.ok_or(unknown)?;
        let tp = TopicPartition {
            topic: topic.id,
            partition: partition.index,
        };
        item.tp = tp;
        let state = topic.partition(partition.index);
        let state = state.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let bytes: &[u8] = match &partition.records {
            Records::Bytes(bytes) => bytes,
            Records::Null | Records::Gap(_) => &[],
        };
        let batch = first_batch(bytes)?;
        if batch.codec() == Some(Codec::Zstd) && call.version < 7 {
            return Err(ErrorCode::UnsupportedCompressionType.into());
        }
        if batch.is_transactional() {
            return Err(
                transactional_refusal(call.version, request.transactional_id.is_some()).into(),
            );
        }
        if !matches!(request.acks, ACKS_ALL..=1) {
            return Err(ErrorCode::InvalidRequiredAcks.into());
        }
        if is_internal(&topic.name) && !admin {
            return Err(ErrorCode::InvalidTopicException.into());
        }
        if state.leader != self.node {
            item.leader = Some((state.leader, state.leader_epoch));
            return Err(ErrorCode::NotLeaderOrFollower.into());
        }
        let hosted = self.hosted.get_mut(&tp);
        let hosted = hosted.ok_or(ErrorCode::NotLeaderOrFollower)?;
        let Some(replica) = &hosted.replica else {
            return Err(self.not_open(tp).into());
        };
        let acks_all = request.acks == ACKS_ALL;
        if acks_all && !replica.has_min_isr(topic.config.min_insync_replicas) {
            return Err(ErrorCode::NotEnoughReplicas.into());
        }
        let (leader_epoch, high_watermark) = (replica.leader_epoch(), replica.high_watermark());
        let checked = check_produce(bytes, &hosted.rules, self.now.wall, &mut self.codecs)?;
        let append = AppendAs {
            leader_epoch,
            acks_all,
            now: self.now,
        };
        let appended = self
            .store
            .append(tp, &checked, append)
            .map_err(|error| Refusal::Code(error.code))?;
        let end = appended.last_offset + 1;
        let reached = match request.acks {
            0 => end,
            ACKS_ALL => high_watermark,
            _ => self.store.log(tp).expect("it was appended to").written(),
        };
        item.base_offset = appended.base_offset;
        item.log_append_time = appended.log_append_time;
        item.log_start = appended.log_start;
        item.waits_for = (reached < end).then_some(end);
        if !appended.duplicate {
            let (records, bytes) = (checked.records_count().max(0) as u64, checked.len() as u64);
            self.counters.records_in += records;
            self.counters.bytes_in += bytes;
            hosted.traffic.records_in += records;
            hosted.traffic.bytes_in += bytes;
        }
        Ok(())
    }

    /// One partition of a parked Produce is done.
    pub(in crate::shard) fn produce_done(
        &mut self,
        id: ParkId,
        item: u32,
        error: ErrorCode,
        actions: &mut Actions,
    ) {
        let Some(Parked::Produce(wait)) = self.parked.get_mut(id) else {
            return;
        };
        let item = &mut wait.items[item as usize];
        if item.waits_for.take().is_none() {
            return;
        }
        if error.is_error() {
            item.error = error;
            self.counters.produce_failed += 1;
        }
        wait.pending -= 1;
        if wait.pending == 0
            && let Some(Parked::Produce(wait)) = self.parked.take(id)
        {
            self.produce_answer(wait, actions);
        }
    }

    pub(in crate::shard) fn produce_expired(
        &mut self,
        mut wait: ProduceWait,
        actions: &mut Actions,
    ) {
        for item in wait
            .items
            .iter_mut()
            .filter(|item| item.waits_for.is_some())
        {
            item.error = ErrorCode::RequestTimedOut;
        }
        self.produce_answer(wait, actions);
    }

    fn produce_answer(&mut self, wait: ProduceWait, actions: &mut Actions) {
        let ProduceWait {
            call,
            topics,
            items,
            ..
        } = wait;
        let mut responses: Vec<TopicProduceResponse<'_>> = topics
            .iter()
            .map(|topic| TopicProduceResponse {
                name: Cow::Borrowed(topic.name.as_str()),
                topic_id: topic.id,
                partition_responses: Vec::with_capacity(1),
            })
            .collect();
        let mut endpoints: Vec<NodeEndpoint<'_>> = Vec::new();
        for item in &items {
            if let Some((leader, _)) = item.leader
                && endpoints.iter().all(|known| known.node_id != leader.0)
                && let Some((endpoint, rack)) = self.endpoint_of(leader, call.to.conn)
            {
                endpoints.push(NodeEndpoint {
                    node_id: leader.0,
                    host: endpoint.host.into(),
                    port: i32::from(endpoint.port),
                    rack: Some(rack.into()),
                });
            }
            responses[item.topic as usize]
                .partition_responses
                .push(item.response());
        }
        let response = ProduceResponse {
            responses,
            node_endpoints: endpoints,
            ..Default::default()
        };
        let answer = answer(call, |w, version| response.encode(w, version));
        self.conns
            .answer(call.to, vec![Chunk::Bytes(answer.into())], actions);
    }
}

/// There are no transactions yet: what Kafka answers to a producer that has no open transaction of its own.
fn transactional_refusal(version: i16, has_id: bool) -> ErrorCode {
    match has_id {
        false => ErrorCode::TransactionalIdAuthorizationFailed,
        true if version >= 11 => ErrorCode::TransactionAbortable,
        true => ErrorCode::InvalidTxnState,
    }
}

/// Why one partition was refused.
enum Refusal {
    Code(ErrorCode),
    Batch(BatchError),
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Refusal {
        Refusal::Code(code)
    }
}

impl From<BatchError> for Refusal {
    fn from(error: BatchError) -> Refusal {
        Refusal::Batch(error)
    }
}

impl Item {
    fn new(topic: u32, index: i32) -> Item {
        Item {
            topic,
            index,
            tp: TopicPartition::default(),
            error: ErrorCode::None,
            base_offset: -1,
            log_append_time: -1,
            log_start: -1,
            waits_for: None,
            detail: None,
            leader: None,
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Code(code) => self.error = code,
            Refusal::Batch(error) => {
                self.error = error.code;
                self.detail = Some(Box::new(error));
            }
        }
    }

    fn response(&self) -> PartitionProduceResponse<'_> {
        let failed = self.error.is_error();
        let (leader_id, leader_epoch) = self
            .leader
            .map_or((-1, -1), |(node, epoch)| (node.0, epoch));
        let error_text = |error: &RecordError| BatchIndexAndErrorMessage {
            batch_index: error.batch_index,
            batch_index_error_message: Some(error.message.clone().into()),
        };
        PartitionProduceResponse {
            index: self.index,
            error_code: self.error.code(),
            base_offset: if failed { -1 } else { self.base_offset },
            log_append_time_ms: if failed { -1 } else { self.log_append_time },
            log_start_offset: if failed { -1 } else { self.log_start },
            record_errors: self
                .detail
                .iter()
                .flat_map(|detail| &detail.record_errors)
                .map(error_text)
                .collect(),
            error_message: self
                .detail
                .as_ref()
                .map(|detail| Cow::Borrowed(&*detail.message)),
            current_leader: LeaderIdAndEpoch {
                leader_id,
                leader_epoch,
            },
        }
    }
}
