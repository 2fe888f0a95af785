//! What look-ups of offsets, epochs and times may say.

use super::{BatchId, EPOCH_MS, Oracle, name};
use crate::batch::Batch;
use crate::log::Log;
use crate::model::{TopicId, TopicPartition};

/// What was known of a partition when a look-up left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sim) struct Known {
    pub life: u64,
    pub high_watermark: i64,
    pub start: i64,
    /// -1 if the log was not open.
    pub leader_epoch: i32,
    /// The topic's deletion was answered before.
    gone: bool,
}

impl Oracle {
    pub fn probe(&self, tp: TopicPartition) -> Known {
        let part = self.parts.get(&tp);
        Known {
            life: self.life,
            high_watermark: part.map_or(0, |part| part.high_watermark),
            start: part.map_or(0, |part| part.start),
            leader_epoch: part
                .filter(|part| part.opened.is_some())
                .map_or(-1, |part| part.leader_epoch),
            gone: self.topics.is_gone(tp.topic),
        }
    }

    /// A request that named this topic by its id was answered with something of it.
    pub fn served(&mut self, tp: TopicPartition, known: Known) {
        if known.gone {
            self.fail(format!("{} is served and was deleted before", name(tp)));
        }
    }

    /// The start of the log, as any answer says.
    pub fn start_is(&mut self, tp: TopicPartition, says: i64, known: Known) {
        let now = self.start_of(tp);
        if !(known.start..=now).contains(&says) {
            self.fail(format!(
                "{} is said to start at {says}, it went from {} to {now}",
                name(tp),
                known.start
            ));
        }
    }

    /// Somebody asks to delete the records below `offset`; -1: below the high watermark.
    pub fn trimming(&mut self, topic: &str, partition: i32, offset: i64) {
        let asked = self.trimming.entry((topic.to_string(), partition));
        let offset = if offset < 0 { i64::MAX } else { offset };
        let asked = asked.or_default();
        *asked = offset.max(*asked);
    }

    /// That was answered: the log starts here, or later.
    pub fn trimmed(&mut self, topic: TopicId, partition: i32, start: i64) {
        let part = self.parts.entry(TopicPartition { topic, partition });
        let part = part.or_default();
        part.trimmed = start.max(part.trimmed);
    }

    /// The log's end when last looked at, 0 where it is not known.
    pub fn end_of(&self, topic: Option<TopicId>, partition: i32) -> i64 {
        let part = topic.and_then(|topic| self.parts.get(&TopicPartition { topic, partition }));
        part.map_or(0, |part| part.appended)
    }

    /// The log's start when last looked at.
    pub fn start_of(&self, tp: TopicPartition) -> i64 {
        self.parts.get(&tp).map_or(0, |part| part.start)
    }

    /// Looks at where a log begins: whole segments go, and only those that its configs give up.
    pub(super) fn look_at_start(&mut self, log: &Log, topic: &str, fresh: bool, wall: i64) {
        let tp = log.tp();
        let asked = self.trimming.get(&(topic.to_string(), tp.partition));
        let asked = asked.copied().unwrap_or(0);
        let Some(part) = self.parts.get_mut(&tp) else {
            return;
        };
        let (before, start) = (part.start, log.start());
        part.start = start;
        if start < part.trimmed {
            let trimmed = part.trimmed;
            return self.fail(format!(
                "{}: the log starts at {start}, records below {trimmed} were deleted",
                name(tp)
            ));
        }
        if start == before {
            return;
        }
        let config = log.config();
        let newest = part
            .known
            .range(..start)
            .next_back()
            .map(|(_, known)| known.batch);
        let too_many = config.retention_bytes >= 0
            && log.size_bytes() >= config.retention_bytes.unsigned_abs();
        let too_old = config.retention_ms >= 0
            && newest.is_none_or(|batch| wall - time_of(batch) > config.retention_ms);
        let wrong = if start < before {
            Some("it went back")
        } else if start > log.safe() {
            Some("that is above what is safe")
        } else if !fresh && !too_many && !too_old && start > asked {
            // What went before a crash was looked at then, but for the last turn.
            Some("nothing asks for it")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            self.fail(format!(
                "{}: the log starts at {start} after {before}: {wrong}",
                name(tp)
            ));
        }
    }

    /// ListOffsets says that the log ends here for readers, with this leader epoch.
    pub fn latest(&mut self, tp: TopicPartition, says: i64, epoch: i32, known: Known) {
        self.high_watermark(tp, says, known.high_watermark);
        let Some(part) = self.parts.get(&tp) else {
            return;
        };
        let (appended, now) = (part.appended_max, part.leader_epoch);
        if says > appended {
            self.fail(format!(
                "{}: readers are told of an end at {says}, the log ends at {appended}",
                name(tp)
            ));
        }
        if epoch != -1 && !(known.leader_epoch..=now).contains(&epoch) {
            self.fail(format!(
                "{}: leader epoch {epoch} was told, it went from {} to {now}",
                name(tp),
                known.leader_epoch
            ));
        }
    }

    /// ListOffsets by time: the first record not before `wanted` is this one, or there is none.
    pub fn found_by_time(
        &mut self,
        tp: TopicPartition,
        wanted: i64,
        found: Option<(i64, i64, i32)>,
        known: Known,
    ) {
        let Some(part) = self.parts.get(&tp) else {
            return;
        };
        let first = part
            .known
            .range(part.start..)
            .find(|(_, at)| at.last < known.high_watermark && time_of(at.batch) >= wanted)
            .map(|(base, at)| (*base, at.batch));
        match (first, found) {
            (_, Some((offset, timestamp, _))) if timestamp < wanted => {
                return self.fail(format!(
                    "{}: time {wanted} was looked for, {timestamp} at {offset} was found",
                    name(tp)
                ));
            }
            (Some((base, batch)), None) => {
                return self.fail(format!(
                    "{}: no record was found for time {wanted}, batch {batch} is at {base}",
                    name(tp)
                ));
            }
            (Some((base, batch)), Some((offset, ..))) if offset > base => {
                return self.fail(format!(
                    "{}: {offset} was found for time {wanted}, batch {batch} is before, at {base}",
                    name(tp)
                ));
            }
            (_, None) | (_, Some(_)) => {}
        }
        if let Some((offset, timestamp, epoch)) = found {
            self.claim(tp, offset, timestamp, epoch);
        }
    }

    /// ListOffsets for the largest timestamp.
    pub fn found_newest(
        &mut self,
        tp: TopicPartition,
        found: Option<(i64, i64, i32)>,
        known: Known,
    ) {
        let Some(part) = self.parts.get(&tp) else {
            return;
        };
        let newest = part
            .known
            .range(part.start..)
            .filter(|(_, at)| at.last < known.high_watermark)
            .map(|(_, at)| at.batch)
            .max();
        let says = found.map(|(_, timestamp, _)| timestamp);
        // As Kafka does it: nothing is found while the newest record is one that readers may not see yet.
        let hidden = says.is_none() && part.appended_max > known.high_watermark;
        if newest.map(time_of) > says && !hidden {
            return self.fail(format!(
                "{}: {says:?} is told as the largest timestamp, there is batch {newest:?}",
                name(tp)
            ));
        }
        if let Some((offset, timestamp, epoch)) = found {
            self.claim(tp, offset, timestamp, epoch);
        }
    }

    /// The record at this offset has this timestamp, which names its batch, and was appended in this leader epoch.
    fn claim(&mut self, tp: TopicPartition, offset: i64, timestamp: i64, epoch: i32) {
        let batch = timestamp.wrapping_sub(EPOCH_MS) as u64;
        if batch >= self.batches() {
            return self.fail(format!(
                "{}: {offset} was found at time {timestamp}, no record has it",
                name(tp)
            ));
        }
        let Some(part) = self.parts.get_mut(&tp) else {
            return;
        };
        let expected = epoch_at(&part.epochs, offset);
        if let Some(before) = part.claims.insert(offset, batch)
            && before != batch
        {
            return self.fail(format!(
                "{}: {offset} is said to be of batch {before} and of {batch}",
                name(tp)
            ));
        }
        if epoch != -1 && expected.is_some_and(|expected| expected != epoch) {
            return self.fail(format!(
                "{}: {offset} is said to be of leader epoch {epoch}, it is of {expected:?}",
                name(tp)
            ));
        }
        self.check_claim(tp, offset, batch);
    }

    /// Compares what a look-up said with what is known by now.
    pub(super) fn check_claim(&mut self, tp: TopicPartition, offset: i64, batch: BatchId) {
        let known = self.parts.get(&tp).and_then(|part| {
            let (_, known) = part.known.range(..=offset).next_back()?;
            (known.last >= offset).then_some(*known)
        });
        match known {
            Some(known) if known.batch != batch => self.fail(format!(
                "{}: a look-up found batch {batch} at {offset}, batch {} is there",
                name(tp),
                known.batch
            )),
            _ => {}
        }
    }

    /// OffsetForLeaderEpoch: `asked` ended there, the last epoch with records up to it is `epoch`.
    pub fn epoch_end(
        &mut self,
        tp: TopicPartition,
        asked: i32,
        (epoch, end): (i32, i64),
        known: Known,
    ) {
        let Some(part) = self.parts.get(&tp) else {
            return;
        };
        // It may have moved between the question and now.
        let (then, now) = (known.leader_epoch, part.leader_epoch);
        let wrong = if asked > then && (epoch, end) == (-1, -1) {
            None
        } else if asked > now {
            Some("it has not begun".to_string())
        } else if asked == now {
            let (from, to) = (known.high_watermark, part.appended_max);
            (epoch != asked || !(from..=to).contains(&end))
                .then(|| format!("it is the leader's, whose log ends in {from}..={to}"))
        } else {
            let later = part.epochs.iter().filter(|(epoch, _)| *epoch > asked);
            match later.map(|(_, start)| *start).min() {
                // Epochs below the start are forgotten.
                Some(expected) if expected <= part.start => None,
                Some(expected)
                    if asked >= then
                        && epoch == asked
                        && (known.high_watermark..=expected).contains(&end) =>
                {
                    None
                }
                Some(expected) if end != expected => Some(format!("it ended at {expected}")),
                Some(expected) => {
                    let last = epoch_at(&part.epochs, expected - 1);
                    (last != Some(epoch)).then(|| format!("the record before is of {last:?}"))
                }
                None => None,
            }
        };
        if let Some(wrong) = wrong {
            self.fail(format!(
                "{}: the end of leader epoch {asked} is said to be ({epoch}, {end}): {wrong}",
                name(tp)
            ));
        }
    }
}

fn time_of(batch: BatchId) -> i64 {
    EPOCH_MS + batch as i64
}

/// The leader epoch in which the record at `offset` was appended, from the starts of the epochs and the log's ends then.
pub(super) fn epoch_at(epochs: &[(i32, i64)], offset: i64) -> Option<i32> {
    let holder = epochs.iter().rev().find(|(_, start)| *start <= offset);
    holder.map(|(epoch, _)| *epoch)
}

/// The last offset of a batch that was made, put at `base`.
pub(super) fn last_of(bytes: &[u8], base: i64) -> Result<i64, String> {
    match Batch::view(bytes) {
        Ok((batch, _)) => Ok(base + i64::from(batch.last_offset_delta())),
        Err(e) => Err(format!("the simulator built a bad batch: {e}")),
    }
}
