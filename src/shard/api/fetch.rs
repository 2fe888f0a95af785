//! Fetch (1), versions 4 to 18; KIP-74, KIP-98, KIP-227, KIP-320, KIP-392, KIP-516, KIP-951.
//!
//! A fetch is planned without I/O: header bytes with gaps, and spans of memory or of segment files that fill them. Below
//! its min bytes it is parked and planned again when a log that it names moves. Differs from Kafka on purpose: isolation
//! levels other than 0 and 1 are INVALID_REQUEST, negative partition max bytes are taken as 0.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::Call;
use crate::log::{ReadPlan, Span};
use crate::model::{ConnId, ErrorCode, Instant, NodeId, TopicId, TopicPartition};
use crate::shard::park::{ParkId, Parked};
use crate::shard::session::{FetchItem, SessionUse, TopicRef};
use crate::shard::{Actions, Chunk, Shard};
use crate::wire::msg::fetch_request::FetchRequest;
use crate::wire::msg::fetch_response::{
    EpochEndOffset, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint,
    PartitionData,
};
use crate::wire::{Malformed, Reader, Records, Writer, write_response_header};

use super::Flow;

const TOPIC_IDS_SINCE: i16 = 13;
const READ_COMMITTED: i8 = 1;

/// A fetch on its way.
#[derive(Debug)]
pub struct FetchWait {
    call: Call,
    session: SessionUse,
    items: Vec<FetchItem>,
    bytes_min: i64,
    bytes_max: i64,
    read_committed: bool,
    deadline: Instant,
    /// Some logs have this fetch among their watchers.
    registered: bool,
    /// Its time is up, and it waits for a read from disk alone.
    read_is_late: bool,
}

/// The plan of one partition.
#[derive(Debug, Default)]
struct Planned {
    error: ErrorCode,
    high_watermark: i64,
    last_stable: i64,
    log_start: i64,
    /// An epoch that the client's has diverged from, and its end.
    diverging: Option<(i32, i64)>,
    leader: Option<(NodeId, i32)>,
    spans: Vec<Span>,
    bytes: u32,
}

/// Whether a plan may be answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answerable {
    /// Something must be told at once: an error or a diverging epoch.
    AtOnce,
    /// When it has enough bytes, or the time is up.
    ByBytes,
    /// Only when a read that is under way is done.
    AfterRead,
}

impl Shard {
    pub(super) fn fetch(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = FetchRequest::decode(r, call.version)?;
        if !matches!(request.isolation_level, 0..=READ_COMMITTED) {
            return Ok(Flow::Answer(refusal(call, ErrorCode::InvalidRequest)));
        }
        let by_id = call.version >= TOPIC_IDS_SINCE;
        let items = items_of(&request, by_id);
        let forgotten = forgotten_of(&request, by_id);
        let begun = self.sessions.begin(
            request.session_id,
            request.session_epoch,
            by_id,
            items,
            &forgotten,
            self.now.mono,
            &mut self.rng,
        );
        let (session, items) = match begun {
            Ok(begun) => begun,
            Err(error) => return Ok(Flow::Answer(refusal(call, error))),
        };
        let bytes_max = i64::from(request.max_bytes.clamp(0, self.config.fetch_bytes_max));
        let wait = FetchWait {
            call,
            session,
            items,
            // More than fits into an answer cannot be waited for.
            bytes_min: i64::from(request.min_bytes.max(0)).min(bytes_max),
            bytes_max,
            read_committed: request.isolation_level == READ_COMMITTED,
            deadline: self.now.mono.after_ms(request.max_wait_ms.max(0) as u64),
            registered: false,
            read_is_late: false,
        };
        let id = self.parked.reserve();
        self.fetch_or_park(id, wait, request.max_wait_ms <= 0, actions);
        Ok(Flow::Parked)
    }

    /// Looks again at a parked fetch. `last`: its time is up.
    pub(in crate::shard) fn fetch_again(&mut self, id: ParkId, last: bool, actions: &mut Actions) {
        let Some(Parked::Fetch(wait)) = self.parked.take(id) else {
            return;
        };
        self.fetch_or_park(id, wait, last, actions);
    }

    pub(in crate::shard) fn fetch_expired(
        &mut self,
        id: ParkId,
        wait: FetchWait,
        actions: &mut Actions,
    ) {
        self.fetch_or_park(id, wait, true, actions);
    }

    /// Takes a fetch out of the watchers of its logs.
    pub(in crate::shard) fn fetch_forget(&mut self, id: ParkId, wait: &FetchWait) {
        if !wait.registered {
            return;
        }
        for item in &wait.items {
            if let Some(hosted) = self.tp_of(item).and_then(|tp| self.hosted.get_mut(&tp)) {
                hosted.watchers.retain(|watcher| *watcher != id);
            }
        }
    }

    fn fetch_or_park(
        &mut self,
        id: ParkId,
        mut wait: FetchWait,
        last: bool,
        actions: &mut Actions,
    ) {
        let (planned, bytes, answerable) = self.fetch_plan(&wait);
        let enough = bytes >= wait.bytes_min && (bytes > 0 || wait.bytes_min == 0);
        let answer = match answerable {
            Answerable::AtOnce => true,
            Answerable::ByBytes => last || enough || wait.items.is_empty(),
            // What is in memory already is not held back for a read from disk; a fetch without anything waits for it, for a
            // while longer than its time.
            Answerable::AfterRead => bytes > 0 && enough || last && wait.read_is_late,
        };
        if answer {
            self.fetch_forget(id, &wait);
            return self.fetch_answer(wait, planned, actions);
        }
        wait.registered = true;
        for item in &wait.items {
            if let Some(hosted) = self.tp_of(item).and_then(|tp| self.hosted.get_mut(&tp))
                && !hosted.watchers.contains(&id)
            {
                hosted.watchers.push(id);
            }
        }
        if let Some(conn) = self.conns.get_mut(wait.call.to.conn) {
            conn.parked = Some(id);
        }
        let deadline = if answerable == Answerable::AfterRead && wait.deadline <= self.now.mono {
            wait.read_is_late = true;
            self.now.mono.after_ms(crate::model::limit::READ_WAIT_MS)
        } else {
            wait.deadline
        };
        self.parked.put(id, Parked::Fetch(wait), deadline);
    }

    fn tp_of(&self, item: &FetchItem) -> Option<TopicPartition> {
        let topic = match &item.topic {
            TopicRef::Name(name) => self.image.topic_id(name)?,
            TopicRef::Id(id) => *id,
        };
        Some(TopicPartition {
            topic,
            partition: item.partition,
        })
    }

    fn fetch_plan(&mut self, wait: &FetchWait) -> (Vec<Planned>, i64, Answerable) {
        let mut all = Vec::with_capacity(wait.items.len());
        let mut bytes = 0i64;
        let mut answerable = Answerable::ByBytes;
        for item in &wait.items {
            let mut planned = Planned {
                high_watermark: -1,
                last_stable: -1,
                log_start: -1,
                ..Planned::default()
            };
            match self.fetch_one(wait, item, bytes, &mut planned) {
                Ok(Read::Done) => {}
                Ok(Read::Later) if answerable == Answerable::ByBytes => {
                    answerable = Answerable::AfterRead
                }
                Ok(Read::Later) => {}
                Err(error) => planned.error = error,
            }
            if planned.error.is_error() || planned.diverging.is_some() {
                answerable = Answerable::AtOnce;
            }
            bytes += i64::from(planned.bytes);
            all.push(planned);
        }
        (all, bytes, answerable)
    }

    fn fetch_one(
        &mut self,
        wait: &FetchWait,
        item: &FetchItem,
        bytes_before: i64,
        planned: &mut Planned,
    ) -> Result<Read, ErrorCode> {
        let unknown = match &item.topic {
            TopicRef::Name(_) => ErrorCode::UnknownTopicOrPartition,
            TopicRef::Id(_) => ErrorCode::UnknownTopicId,
        };
        let tp = self.tp_of(item).ok_or(unknown)?;
        let topic = self.image.topic(tp.topic).ok_or(unknown)?;
        let state = topic.partition(tp.partition);
        let state = state.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if state.leader != self.node {
            planned.leader = Some((state.leader, state.leader_epoch));
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let (replica, log) = self.open_partition(tp)?;
        if let Err(error) = replica.check_epoch(item.current_leader_epoch) {
            planned.leader = Some((self.node, replica.leader_epoch()));
            return Err(error);
        }
        let end = if wait.read_committed {
            replica.last_stable()
        } else {
            replica.high_watermark()
        };
        let (start, log_end) = (log.start(), log.appended());
        if item.last_fetched_epoch >= 0 {
            let (epoch, end_offset) = replica.epoch_end(log, item.last_fetched_epoch);
            if end_offset < 0 {
                return Err(ErrorCode::OffsetOutOfRange);
            }
            if epoch < item.last_fetched_epoch || end_offset < item.fetch_offset {
                planned.diverging = Some((epoch, end_offset));
            }
        }
        // A client that has diverged may be anywhere: it is told so whatever its offset is.
        let diverged = planned.diverging.is_some();
        if !diverged && (item.fetch_offset < start || item.fetch_offset > log_end) {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        planned.high_watermark = replica.high_watermark();
        planned.last_stable = replica.last_stable();
        planned.log_start = start;
        if diverged || item.fetch_offset >= end {
            return Ok(Read::Done);
        }
        let room = (wait.bytes_max - bytes_before).clamp(0, i64::from(u32::MAX)) as u32;
        let bytes_max = room.min(item.bytes_max.max(0) as u32);
        match self
            .store
            .read(tp, item.fetch_offset, end, bytes_max, bytes_before == 0)
        {
            ReadPlan::Spans { spans, bytes, .. } => {
                planned.spans = spans;
                planned.bytes = bytes;
                Ok(Read::Done)
            }
            ReadPlan::Empty => Ok(Read::Done),
            ReadPlan::OutOfRange => Err(ErrorCode::OffsetOutOfRange),
            ReadPlan::Corrupt => Err(ErrorCode::CorruptMessage),
            ReadPlan::NeedsRead => Ok(Read::Later),
        }
    }

    fn fetch_answer(&mut self, wait: FetchWait, planned: Vec<Planned>, actions: &mut Actions) {
        let mut responses: Vec<FetchableTopicResponse<'_>> = Vec::new();
        let mut spans: Vec<Vec<Span>> = Vec::new();
        let mut endpoints: Vec<NodeEndpoint<'_>> = Vec::new();
        let mut last: Option<&TopicRef> = None;
        for (item, mut planned) in wait.items.iter().zip(planned) {
            let must = planned.error.is_error() || planned.diverging.is_some();
            let has_data = planned.bytes > 0;
            let named = self.sessions.tell(
                wait.session,
                item,
                planned.high_watermark,
                planned.log_start,
                has_data,
                must,
            );
            if !named {
                continue;
            }
            if let Some((leader, _)) = planned.leader {
                self.add_endpoint(leader, wait.call.to.conn, &mut endpoints);
            }
            if last != Some(&item.topic) {
                let (topic, topic_id) = match &item.topic {
                    TopicRef::Name(name) => (Cow::Owned(name.to_string()), TopicId::default()),
                    TopicRef::Id(id) => (Cow::Borrowed(""), *id),
                };
                responses.push(FetchableTopicResponse {
                    topic,
                    topic_id,
                    partitions: Vec::new(),
                });
                last = Some(&item.topic);
            }
            self.counters.fetch_failed += u64::from(planned.error.is_error());
            if has_data {
                let topic = match &item.topic {
                    TopicRef::Name(name) => self.image.topic_id(name),
                    TopicRef::Id(id) => Some(*id),
                };
                let tp = topic.map(|topic| TopicPartition {
                    topic,
                    partition: item.partition,
                });
                if let Some(hosted) = tp.and_then(|tp| self.hosted.get_mut(&tp)) {
                    hosted.traffic.bytes_out += planned.bytes as u64;
                }
                spans.push(std::mem::take(&mut planned.spans));
            }
            let topic = responses.last_mut().expect("pushed above");
            topic
                .partitions
                .push(planned.response(item.partition, wait.read_committed));
        }
        let response = FetchResponse {
            session_id: wait.session.id(),
            responses,
            node_endpoints: endpoints,
            ..Default::default()
        };
        let mut w = Writer::with_capacity(256);
        let start = w.begin_frame();
        write_response_header(
            &mut w,
            wait.call.api,
            wait.call.version,
            wait.call.correlation_id,
        );
        response.encode(&mut w, wait.call.version);
        w.end_frame(start);
        let gaps = std::mem::take(&mut w.gaps);
        let chunks = with_spans(w.into_bytes().into(), &gaps, spans);
        self.counters.bytes_out += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        if let Some(conn) = self.conns.get_mut(wait.call.to.conn) {
            conn.parked = None;
        }
        self.conns.answer(wait.call.to, chunks, actions);
    }

    fn add_endpoint(&self, leader: NodeId, conn: ConnId, endpoints: &mut Vec<NodeEndpoint<'_>>) {
        if endpoints.iter().any(|known| known.node_id == leader.0) {
            return;
        }
        if let Some((endpoint, rack)) = self.endpoint_of(leader, conn) {
            endpoints.push(NodeEndpoint {
                node_id: leader.0,
                host: endpoint.host.into(),
                port: i32::from(endpoint.port),
                rack: Some(rack.into()),
            });
        }
    }
}

/// How far the read of one partition came.
enum Read {
    Done,
    Later,
}

impl Planned {
    fn response(&self, partition_index: i32, read_committed: bool) -> PartitionData<'static> {
        let (leader_id, leader_epoch) = self
            .leader
            .map_or((-1, -1), |(node, epoch)| (node.0, epoch));
        let (epoch, end_offset) = self.diverging.unwrap_or((-1, -1));
        let records = if self.bytes == 0 {
            Records::Bytes(Cow::Borrowed(&[]))
        } else {
            Records::Gap(self.bytes)
        };
        PartitionData {
            partition_index,
            error_code: self.error.code(),
            high_watermark: self.high_watermark,
            last_stable_offset: self.last_stable,
            log_start_offset: self.log_start,
            diverging_epoch: EpochEndOffset { epoch, end_offset },
            current_leader: LeaderIdAndEpoch {
                leader_id,
                leader_epoch,
            },
            aborted_transactions: (read_committed || self.error.is_error()).then(Vec::new),
            records,
            ..Default::default()
        }
    }
}

/// The answer's bytes with the spans put into its gaps.
fn with_spans(head: Bytes, gaps: &[usize], spans: Vec<Vec<Span>>) -> Vec<Chunk> {
    assert_eq!(
        gaps.len(),
        spans.len(),
        "a gap for every partition with data"
    );
    let mut chunks = Vec::with_capacity(2 * spans.len() + 1);
    let mut from = 0;
    for (gap, spans) in gaps.iter().zip(spans) {
        chunks.push(Chunk::Bytes(head.slice(from..*gap)));
        chunks.extend(spans.into_iter().map(Chunk::Span));
        from = *gap;
    }
    if from < head.len() {
        chunks.push(Chunk::Bytes(head.slice(from..)));
    }
    chunks
}

fn refusal(call: Call, error: ErrorCode) -> Vec<u8> {
    let response = FetchResponse {
        error_code: error.code(),
        ..Default::default()
    };
    super::answer(call, |w, version| response.encode(w, version))
}

fn topic_ref(by_id: bool, name: &str, id: TopicId) -> TopicRef {
    if by_id {
        TopicRef::Id(id)
    } else {
        TopicRef::Name(Arc::from(name))
    }
}

fn items_of(request: &FetchRequest<'_>, by_id: bool) -> Vec<FetchItem> {
    let mut items = Vec::with_capacity(
        request
            .topics
            .iter()
            .map(|topic| topic.partitions.len())
            .sum(),
    );
    for topic in &request.topics {
        let name = topic_ref(by_id, &topic.topic, topic.topic_id);
        items.extend(topic.partitions.iter().map(|partition| FetchItem {
            topic: name.clone(),
            partition: partition.partition,
            fetch_offset: partition.fetch_offset,
            bytes_max: partition.partition_max_bytes,
            current_leader_epoch: partition.current_leader_epoch,
            last_fetched_epoch: partition.last_fetched_epoch,
        }));
    }
    items
}

fn forgotten_of(request: &FetchRequest<'_>, by_id: bool) -> Vec<(TopicRef, i32)> {
    let topics = request.forgotten_topics_data.iter();
    topics
        .flat_map(|topic| {
            let name = topic_ref(by_id, &topic.topic, topic.topic_id);
            topic
                .partitions
                .iter()
                .map(move |partition| (name.clone(), *partition))
        })
        .collect()
}
