//! What must be true, whatever happens: the records that clients know of, and what may become of them.
//!
//! A batch is known by its base timestamp, which no two batches share; its bytes behind the base offset and the leader
//! epoch never change. Where a batch is comes from answers and fetches alone; only the end of a recovered log is read off
//! the log itself.

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub(super) use probes::Known as ProbeKnown;

use self::probes::epoch_at;
use super::topics::Topics;
use crate::batch::Batch;
use crate::log::faulty::Loss;
use crate::log::{Log, LogState};
use crate::model::{TopicId, TopicPartition};

/// Base timestamp of batch 0.
pub(super) const EPOCH_MS: i64 = 1_700_000_000_000;

/// Bytes of a batch from here on are the client's: the CRC covers them.
const FIXED_FROM: usize = 21;

pub(super) type BatchId = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Promise {
    /// -1, 0 or 1.
    pub acks: i16,
    pub idempotent: bool,
}

struct Sent {
    bytes: Rc<[u8]>,
    promise: Promise,
    /// Where its producer wants it.
    meant: TopicPartition,
    /// It was sent under the name of its topic, which another topic may have by the time it arrives.
    by_name: bool,
    /// How often it was sent, and in which life of the process last.
    sends: u32,
    last_life: u64,
    /// Where it is known to be.
    places: BTreeSet<(TopicPartition, i64)>,
}

#[derive(Clone, Copy)]
struct Known {
    last: i64,
    batch: BatchId,
    /// It survives a power loss.
    durable: bool,
}

#[derive(Default)]
struct Part {
    known: BTreeMap<i64, Known>,
    write_caching: bool,
    /// The log's start when last looked at in this life.
    start: i64,
    /// DeleteRecords was answered with this start: no crash takes it back.
    trimmed: i64,
    /// The log's end when last looked at, and the highest in this life.
    appended: i64,
    appended_max: i64,
    safe: i64,
    /// Open in this life, with this end at first.
    opened: Option<i64>,
    /// The life of each start that opened the log, and its end by then.
    ends: Vec<(u64, i64)>,
    /// The leader epoch of each start that opened the log, and its end by then.
    epochs: Vec<(i32, i64)>,
    leader_epoch: i32,
    /// What look-ups by time said: the record at this offset is of this batch.
    claims: BTreeMap<i64, BatchId>,
    /// The log is being cut, and what it had beyond its safe end may go.
    cut: bool,
    /// The worst crash since the log was open last.
    loss: Option<Loss>,
    /// The process was stopping when it ended: what came with the stop was appended and not seen here.
    stopped: bool,
    /// The highest high watermark that any client saw in this life.
    high_watermark: i64,
    /// Everything below was read in order by a reader that began after the storm.
    checked: i64,
}

#[derive(Default)]
pub(super) struct Oracle {
    sent: Vec<Sent>,
    parts: BTreeMap<TopicPartition, Part>,
    producer_ids: BTreeSet<i64>,
    /// Counts starts of the process.
    pub life: u64,
    /// An injected error may fence replicas in this life.
    pub fences_allowed: bool,
    /// Writes may be refused in this life: the disk failed, or is full.
    pub refusals_allowed: bool,
    /// Some crash took written data that was not flushed.
    pub power_losses: u32,
    pub topics: Topics,
    /// The highest offset that a DeleteRecords asked for, by the topic's name and the partition.
    trimming: BTreeMap<(String, i32), i64>,
    pub acknowledged: u64,
    /// For the reader of a trace.
    pub notes: Vec<String>,
    failure: Option<String>,
}

impl Oracle {
    pub fn fail(&mut self, why: String) {
        if self.failure.is_none() {
            self.failure = Some(why);
        }
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    // -- what clients send

    /// The base timestamp of the next batch.
    pub fn next_timestamp(&self) -> i64 {
        EPOCH_MS + self.sent.len() as i64
    }

    /// How many batches were made.
    pub fn batches(&self) -> u64 {
        self.sent.len() as u64
    }

    pub fn batch(&mut self, bytes: Rc<[u8]>, promise: Promise, meant: TopicPartition) -> BatchId {
        self.sent.push(Sent {
            bytes,
            promise,
            meant,
            by_name: false,
            sends: 0,
            last_life: 0,
            places: BTreeSet::new(),
        });
        self.sent.len() as u64 - 1
    }

    pub fn bytes(&self, batch: BatchId) -> Rc<[u8]> {
        Rc::clone(&self.sent[batch as usize].bytes)
    }

    pub fn sent(&mut self, batch: BatchId, by_name: bool) {
        let life = self.life;
        let sent = &mut self.sent[batch as usize];
        sent.by_name |= by_name;
        sent.sends += 1;
        sent.last_life = life;
    }

    pub fn producer_id(&mut self, id: i64) {
        if !self.producer_ids.insert(id) {
            self.fail(format!("producer id {id} was given out twice"));
        }
    }

    // -- what clients are told

    /// The broker says that the batch is at this offset.
    pub fn acked(&mut self, tp: TopicPartition, batch: BatchId, base: i64) {
        self.acknowledged += 1;
        let sent = &self.sent[batch as usize];
        let last = match probes::last_of(&sent.bytes, base) {
            Ok(last) => last,
            Err(e) => return self.fail(e),
        };
        self.learn(tp, base, last, batch);
    }

    /// A fetch of `[from..)` brought these bytes. Gives the next offset to fetch.
    pub fn fetched(
        &mut self,
        tp: TopicPartition,
        from: i64,
        high_watermark: i64,
        mut bytes: &[u8],
    ) -> i64 {
        let mut next = from;
        let mut first = true;
        while !bytes.is_empty() {
            let (batch, len) = match Batch::parse(bytes) {
                Ok(found) => found,
                Err(e) => {
                    self.fail(format!(
                        "{} at {next}: a fetch gave no batch: {e}",
                        name(tp)
                    ));
                    return next;
                }
            };
            let (base, last) = (batch.base_offset(), batch.last_offset());
            // The first batch may begin before what was asked for, which is a record inside of it.
            let holds = std::mem::take(&mut first) && base < next && next <= last;
            if base != next && !holds {
                self.fail(format!(
                    "{}: offsets are not dense: {base} follows {next}",
                    name(tp)
                ));
                return next;
            }
            if last >= high_watermark {
                self.fail(format!(
                    "{}: offset {last} was shown at a high watermark of {high_watermark}",
                    name(tp)
                ));
            }
            self.shown(tp, &batch);
            next = last + 1;
            bytes = &bytes[len..];
        }
        next
    }

    /// A consumer got this batch.
    fn shown(&mut self, tp: TopicPartition, batch: &Batch<'_>) {
        let base = batch.base_offset();
        let id = batch.base_timestamp().wrapping_sub(EPOCH_MS) as u64;
        let life = self.life;
        let Some(sent) = self.sent.get(id as usize) else {
            return self.fail(format!("{} at {base}: nobody sent this batch", name(tp)));
        };
        if sent.bytes[FIXED_FROM..] != batch.bytes()[FIXED_FROM..] {
            return self.fail(format!(
                "{} at {base}: batch {id} is not what was sent",
                name(tp)
            ));
        }
        let (old, epoch) = match self.parts.get(&tp) {
            Some(part) => (
                part.opened.is_none_or(|opened| base < opened),
                epoch_at(&part.epochs, base),
            ),
            None => return self.fail(format!("{} is served and not open", name(tp))),
        };
        if !old && sent.last_life != life {
            return self.fail(format!(
                "{} at {base}: batch {id} came back from the dead: it was not sent since the last start",
                name(tp)
            ));
        }
        if epoch != Some(batch.leader_epoch()) {
            return self.fail(format!(
                "{} at {base}: batch {id} has leader epoch {}, its leader had {epoch:?}",
                name(tp),
                batch.leader_epoch()
            ));
        }
        self.learn(tp, base, batch.last_offset(), id);
    }

    fn learn(&mut self, tp: TopicPartition, base: i64, last: i64, batch: BatchId) {
        let part = self.parts.entry(tp).or_default();
        let sent = &self.sent[batch as usize];
        let (promise, meant) = (sent.promise, sent.meant);
        let renamed = sent.by_name
            && meant.partition == tp.partition
            && self.topics.same_name(meant.topic, tp.topic);
        if tp != meant && !renamed {
            return self.fail(format!(
                "batch {batch} is at {base} of {}, it was meant for {}",
                name(tp),
                name(meant)
            ));
        }
        let durable = promise.acks == -1 && !part.write_caching
            || part.opened.is_some_and(|opened| base < opened);
        if let Some(known) = part.known.get_mut(&base)
            && known.batch == batch
        {
            known.durable |= durable;
            return;
        }
        let overlap = part
            .known
            .range(..=last)
            .next_back()
            .filter(|(_, known)| known.last >= base)
            .map(|(base, known)| (*base, *known));
        if let Some((other, known)) = overlap {
            return self.fail(format!(
                "{}: batch {batch} is at [{base}..{}) and batch {} at [{other}..{})",
                name(tp),
                last + 1,
                known.batch,
                known.last + 1
            ));
        }
        part.known.insert(
            base,
            Known {
                last,
                batch,
                durable,
            },
        );
        let sent = &mut self.sent[batch as usize];
        sent.places.insert((tp, base));
        let allowed = if promise.idempotent { 1 } else { sent.sends };
        // A batch sent by name may be in each of the topics that had it.
        let places = sent.places.iter().filter(|(of, _)| *of == tp).count();
        if places as u32 > allowed {
            let places: Vec<String> = sent
                .places
                .iter()
                .map(|(tp, base)| format!("{} at {base}", name(*tp)))
                .collect();
            let sends = sent.sends;
            self.fail(format!(
                "batch {batch} of {promise:?}, sent {sends} times, is at {}",
                places.join(" and ")
            ));
        }
    }

    /// A fetch or look-up said this; `at_least` is what was known when the request left.
    pub fn high_watermark(&mut self, tp: TopicPartition, says: i64, at_least: i64) {
        let part = self.parts.entry(tp).or_default();
        if says < at_least {
            return self.fail(format!(
                "{}: the high watermark went from {at_least} back to {says}",
                name(tp)
            ));
        }
        part.high_watermark = part.high_watermark.max(says);
    }

    /// Where a reader goes on that was at `position` in an earlier life; nothing while the log is not open.
    pub fn resume(&self, tp: TopicPartition, position: i64, since_life: u64) -> Option<i64> {
        let part = self.parts.get(&tp)?;
        part.opened?;
        let ends = part.ends.iter().rev();
        let since = ends.take_while(|(life, _)| *life > since_life);
        since.map(|(_, end)| *end).chain([position]).min()
    }

    /// A reader that began after the storm has everything below.
    pub fn checked(&mut self, tp: TopicPartition, end: i64) {
        let part = self.parts.entry(tp).or_default();
        part.checked = part.checked.max(end);
    }

    // -- what the world does

    /// The process was stopping when it ended.
    pub fn stopped(&mut self) {
        for part in self.parts.values_mut() {
            part.stopped = true;
        }
    }

    pub fn crashed(&mut self, loss: Loss) {
        self.life += 1;
        self.topics.started();
        self.power_losses += u32::from(loss != Loss::Killed);
        for part in self.parts.values_mut() {
            part.opened = None;
            part.cut = false;
            part.appended_max = 0;
            part.start = 0;
            part.high_watermark = 0;
            part.safe = 0;
            part.loss = Some(match (part.loss, loss) {
                (None | Some(Loss::Killed), loss) => loss,
                (Some(before), _) => before,
            });
        }
    }

    /// Looks at a log after a turn of its shard. Gives the end of one that has just opened.
    pub fn look(&mut self, log: &Log, topic: &str, leader_epoch: i32, wall: i64) -> Option<i64> {
        let tp = log.tp();
        if self.topics.is_gone(tp.topic) {
            self.fail(format!("{} is open and deleted", name(tp)));
        }
        let part = self.parts.entry(tp).or_default();
        if leader_epoch < part.leader_epoch {
            let before = part.leader_epoch;
            self.fail(format!(
                "{}: the leader epoch went from {before} back to {leader_epoch}",
                name(tp)
            ));
        }
        let part = self.parts.entry(tp).or_default();
        part.leader_epoch = leader_epoch;
        part.write_caching = log.config().write_caching;
        if let LogState::Fenced(why) = log.state()
            && !self.fences_allowed
        {
            self.fail(format!("{} is fenced without an error: {why:?}", name(tp)));
        }
        if !log.is_ready() {
            return None;
        }
        let part = self.parts.get(&tp);
        let fresh = part.is_some_and(|p| p.opened.is_none());
        let last = part.and_then(|p| p.epochs.last());
        let moved = !fresh && last.is_some_and(|(epoch, _)| *epoch < leader_epoch);
        if fresh {
            self.open(log);
        } else if moved {
            self.open_elsewhere(log);
        }
        let was_cut = self.parts.get(&tp).is_some_and(|p| p.cut);
        if was_cut {
            self.open_again(log);
        }
        self.look_at_start(log, topic, fresh, wall);
        let part = self.parts.entry(tp).or_default();
        part.appended = log.appended();
        part.appended_max = part.appended_max.max(part.appended);
        if log.safe() < part.safe {
            let before = part.safe;
            self.fail(format!(
                "{}: the safe end went from {before} back to {}",
                name(tp),
                log.safe()
            ));
        }
        let part = self.parts.entry(tp).or_default();
        part.safe = log.safe();
        part.opened.filter(|_| fresh || moved)
    }

    /// A log is open: it must hold what was promised before.
    fn open(&mut self, log: &Log) {
        let tp = log.tp();
        let part = self.parts.entry(tp).or_default();
        // The turn that opened it may have appended to it: the epoch of this life starts where the log ended.
        let end = match log.epochs().latest() {
            Some(latest) if latest.epoch == part.leader_epoch => latest.start,
            _ => log.appended(),
        };
        let before = part.appended;
        let loss = part.loss.take();
        part.opened = Some(end);
        part.ends.push((self.life, end));
        part.epochs.push((part.leader_epoch, end));
        self.notes.push(format!(
            "  {} is open from {} to {end} after {loss:?}, it had reached {before}, epochs {:?}",
            name(tp),
            log.start(),
            log.epochs().entries()
        ));
        let floor = part
            .known
            .values()
            .filter(|known| known.durable || loss == Some(Loss::Killed))
            .map(|known| known.last + 1)
            .max()
            .unwrap_or(0);
        if end < floor {
            return self.fail(format!(
                "{}: acknowledged records are lost: the log ends at {end} after {loss:?}, {floor} was promised",
                name(tp)
            ));
        }
        if end > before && !std::mem::take(&mut part.stopped) {
            return self.fail(format!(
                "{}: the log ends at {end} after {loss:?} and had only reached {before}",
                name(tp)
            ));
        }
        self.forget_from(tp, end);
    }

    /// A log is being given up: nothing comes behind this end, which the turn that gave it up may have moved.
    pub fn given_up(&mut self, tp: TopicPartition, appended: i64) {
        if let Some(part) = self.parts.get_mut(&tp)
            && part.opened.is_some()
        {
            part.appended = part.appended.max(appended);
            part.appended_max = part.appended_max.max(appended);
        }
    }

    /// Another shard has it now, in the same life: everything that was appended is there.
    fn open_elsewhere(&mut self, log: &Log) {
        let tp = log.tp();
        let part = self.parts.entry(tp).or_default();
        // As in `open`.
        let end = match log.epochs().latest() {
            Some(latest) if latest.epoch == part.leader_epoch => latest.start,
            _ => log.appended(),
        };
        let before = part.appended;
        let floor = if std::mem::take(&mut part.cut) {
            part.safe
        } else {
            before
        };
        part.opened = Some(end);
        part.ends.push((self.life, end));
        part.epochs.push((part.leader_epoch, end));
        self.notes.push(format!(
            "  {} has moved and is open from {} to {end}, it had reached {before}",
            name(tp),
            log.start()
        ));
        if !(floor..=before).contains(&end) {
            return self.fail(format!(
                "{}: a move made it end at {end}, it had reached {before}, {floor} had to stay",
                name(tp)
            ));
        }
        self.forget_from(tp, end);
    }

    /// The log is being cut at or above its safe end.
    pub fn cut(&mut self, tp: TopicPartition) {
        self.parts.entry(tp).or_default().cut = true;
    }

    /// A log that was cut is open again, in the same life. What the turn that opened it appended is not safe yet.
    fn open_again(&mut self, log: &Log) {
        let tp = log.tp();
        let part = self.parts.entry(tp).or_default();
        part.cut = false;
        let (end, before) = (log.safe(), part.safe);
        self.notes
            .push(format!("  {} was cut and ends at {end} now", name(tp)));
        if end < before {
            return self.fail(format!(
                "{}: a cut went to {end}, the safe end was {before}",
                name(tp)
            ));
        }
        self.forget_from(tp, end);
    }

    /// The log ends here: whole batches beyond are gone, and the rest is flushed.
    fn forget_from(&mut self, tp: TopicPartition, end: i64) {
        let part = self.parts.entry(tp).or_default();
        let mut torn = None;
        let gone: Vec<i64> = part
            .known
            .iter()
            .filter(|(_, known)| known.last >= end)
            .map(|(base, _)| *base)
            .collect();
        for base in gone {
            let known = part.known.remove(&base).expect("listed above");
            self.sent[known.batch as usize].places.remove(&(tp, base));
            if base < end {
                torn = Some(base);
            }
        }
        part.claims.retain(|offset, _| *offset < end);
        // What recovery kept is flushed before it is served.
        for known in part.known.values_mut() {
            known.durable = true;
        }
        if let Some(base) = torn {
            self.fail(format!(
                "{}: the log ends at {end}, inside the batch at {base}",
                name(tp)
            ));
        }
    }

    /// At the very end: everything known of the topics that there are was read again.
    pub fn finish(&mut self, live: &BTreeSet<TopicId>) {
        let mut missing = None;
        let claims: Vec<_> = self
            .parts
            .iter()
            .filter(|(tp, _)| live.contains(&tp.topic))
            .flat_map(|(tp, part)| part.claims.iter().map(|(at, batch)| (*tp, *at, *batch)))
            .collect();
        for (tp, offset, batch) in claims {
            self.check_claim(tp, offset, batch);
        }
        for (tp, part) in &self.parts {
            if !live.contains(&tp.topic) {
                continue;
            }
            let end = part.known.values().map(|k| k.last + 1).max().unwrap_or(0);
            if part.checked < end && end > part.start {
                missing = Some(format!(
                    "{}: records up to {end} are known, only {} could be read",
                    name(*tp),
                    part.checked
                ));
            }
        }
        if let Some(missing) = missing {
            self.fail(missing);
        }
    }
}

pub(super) fn name(tp: TopicPartition) -> String {
    format!("{}-{}", tp.topic, tp.partition)
}
