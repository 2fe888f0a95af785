//! What goes: segments that are too old or too many, what lies below the log start, producers not seen for long.
//!
//! Kafka's rules (UnifiedLog.deleteOldSegments): whole segments from the oldest on, and only below the high watermark.
//! Files go oldest first, each durably before the next: what a crash leaves is always a log without its beginning, never
//! one with a gap.

use std::collections::VecDeque;

use super::config::Config;
use super::op::DiskOp;
use super::ops::{Chain, LogIndex, Then, segment_path};
use super::partition::{AppendError, Log};
use super::segment::Phase;
use super::store::Store;
use crate::model::limit::RETENTION_LOGS_PER_TURN;
use crate::model::{ErrorCode, Instant, Now, TopicPartition, WallMs};

/// The first round is this long after the start (Kafka: 30 seconds).
const FIRST_ROUND_MS: u64 = 30_000;

/// A walk over all logs that is made again and again.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    retention: Round,
    producers: Round,
}

#[derive(Debug, Default)]
struct Round {
    /// The next log to look at; `None`: between rounds.
    at: Option<LogIndex>,
    /// When the next round starts; `None`: not known before the first tick.
    due: Option<Instant>,
}

impl Round {
    /// The logs to look at now.
    fn take(&mut self, now: Instant, interval_ms: u64, logs: usize) -> std::ops::Range<LogIndex> {
        let due = *self
            .due
            .get_or_insert(now.after_ms(interval_ms.min(FIRST_ROUND_MS)));
        if self.at.is_none() && due <= now {
            self.at = Some(0);
            self.due = Some(now.after_ms(interval_ms));
        }
        let Some(from) = self.at else {
            return 0..0;
        };
        let to = (from as usize + RETENTION_LOGS_PER_TURN).min(logs);
        self.at = (to < logs).then_some(to as LogIndex);
        from..to as LogIndex
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.at.is_some() {
            Some(now)
        } else {
            self.due
        }
    }
}

impl Store {
    pub fn set_config(&mut self, tp: TopicPartition, config: Config) {
        if let Some(log) = self.log_mut(tp) {
            log.config = config;
        }
    }

    /// What lies below `offset` may not be read any more (DeleteRecords). Gives the log's start; the offset must not be
    /// above the high watermark. It is durable once [`Log::start_durable`] says so.
    pub fn advance_start(
        &mut self,
        tp: TopicPartition,
        offset: i64,
        now: Now,
    ) -> Result<i64, AppendError> {
        self.now = now;
        let Some(index) = self.index_of(tp) else {
            return Err(AppendError::new(
                ErrorCode::NotLeaderOrFollower,
                "the log is not here",
            ));
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        if !log.is_ready() {
            return Err(AppendError::new(
                ErrorCode::KafkaStorageError,
                "the log is not ready",
            ));
        }
        if offset > log.high_watermark || offset < 0 {
            return Err(AppendError::new(
                ErrorCode::OffsetOutOfRange,
                format!(
                    "{offset} is not in 0..={}, the high watermark",
                    log.high_watermark
                ),
            ));
        }
        let start = log.start;
        let moves = offset > start;
        if moves {
            log.move_start(offset);
        }
        // Retention may have moved the start before, without a word on the device.
        let told = log
            .start_frame
            .map_or(log.start_durable, |(start, _)| start);
        if offset > told {
            log.start_pending = true;
            self.touch(index);
        }
        if moves {
            self.note_progress(index);
        }
        Ok(offset.max(start))
    }

    /// Looks at some logs, if it is time.
    pub(super) fn retain(&mut self) {
        let (mono, wall) = (self.now.mono, self.now.wall);
        let logs = self.logs.len();
        let interval_ms = self.config.retention_check_interval_ms;
        for index in self.rounds.retention.take(mono, interval_ms, logs) {
            self.retain_log(index);
        }
        let interval_ms = self.config.producer_check_interval_ms;
        for index in self.rounds.producers.take(mono, interval_ms, logs) {
            if let Some(log) = self.logs[index as usize].as_deref_mut()
                && log.is_ready()
            {
                let expiration_ms = log.config.producer_id_expiration_ms;
                log.producers.expire(wall, expiration_ms);
            }
        }
    }

    pub(super) fn next_round(&self) -> Option<Instant> {
        let now = self.now.mono;
        let rounds = [&self.rounds.retention, &self.rounds.producers];
        rounds.into_iter().filter_map(|r| r.deadline(now)).min()
    }

    /// Applies the log's retention now.
    pub(super) fn retain_log(&mut self, index: LogIndex) {
        let wall = self.now.wall;
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if !log.is_ready() || log.ending.is_some() || log.segments.is_empty() {
            return;
        }
        let going = match log.deletable(wall) {
            Ok(going) => going,
            Err(base) => {
                // Its newest timestamp is in its index; the next round knows it.
                log.located.want_index(base);
                self.touch(index);
                return;
            }
        };
        if going == 0 {
            return;
        }
        if going == log.segments.len() {
            // The new one has no file yet: its chain comes before the removals.
            self.roll(index);
        }
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let due = going;
        let going: Vec<i64> = log
            .segments
            .iter()
            .take(due)
            .take_while(|s| s.phase == Phase::Closed)
            .map(|s| s.base)
            .collect();
        // Kafka deletes a segment in the round that rolled it.
        log.retain_when_closed = going.len() < due;
        let Some(last) = going.last() else {
            return;
        };
        let next = log.segment(*last).map_or(0, |s| s.next);
        tracing::info!(log = %log.dir, from = going[0], to = next, "old segments are deleted");
        if next > log.start {
            log.move_start(next);
        }
        for base in going {
            let steps = log.removal(base);
            log.chains.push_back(Chain {
                steps,
                then: Then::SegmentRemoved { base },
            });
            let Some(s) = log.segments.pop_front() else {
                continue;
            };
            let mut s = s;
            s.drop_tail(&mut self.pool);
            self.doomed.extend(s.file.take());
            log.located.forget(base);
        }
        self.note_progress(index);
        self.touch(index);
        self.release_journal();
    }

    pub(super) fn segment_removed(&mut self, index: LogIndex, base: i64) {
        let Some(log) = self.logs[index as usize].as_deref() else {
            return;
        };
        let delay_ms = u64::try_from(log.config.file_delete_delay_ms).unwrap_or(0);
        let path = format!("{}.deleted", segment_path(&log.dir, base, "log"));
        self.deletions
            .insert((self.now.mono.after_ms(delay_ms), path));
    }
}

impl Log {
    fn move_start(&mut self, start: i64) {
        self.start = start;
        self.high_watermark = self.high_watermark.max(start);
        let before = self.epochs.clone();
        self.epochs.truncate_start(start);
        self.epochs_dirty |= self.epochs != before;
        self.written_to = true;
    }

    /// How many of the oldest segments may go. The base of one whose index must be read first otherwise.
    fn deletable(&self, now: WallMs) -> Result<usize, i64> {
        let config = &self.config;
        let mut excess = self.size_bytes() as i64 - config.retention_bytes.max(0);
        let by_size = config.retention_deletes && config.retention_bytes >= 0;
        let by_time = config.retention_deletes && config.retention_ms >= 0;
        let mut going = 0;
        for s in &self.segments {
            let is_last = s.next == self.appended;
            if s.next > self.high_watermark || (is_last && s.is_empty()) {
                break;
            }
            let below_start = !is_last && s.next <= self.start;
            let too_much = by_size && excess - s.end as i64 >= 0;
            let mut goes = below_start || too_much;
            if !goes && by_time {
                if !s.max_known {
                    return Err(s.base);
                }
                let newest = if s.max_timestamp >= 0 {
                    s.max_timestamp
                } else {
                    s.created
                };
                goes = now.saturating_sub(newest) > config.retention_ms;
            }
            if !goes {
                break;
            }
            excess -= s.end as i64;
            going += 1;
        }
        Ok(going)
    }

    /// Takes a segment's files away, the log itself first: indexes alone are no segment.
    fn removal(&self, base: i64) -> VecDeque<DiskOp> {
        let path = |suffix| segment_path(&self.dir, base, suffix);
        VecDeque::from([
            DiskOp::Rename {
                from: path("log"),
                to: format!("{}.deleted", path("log")),
            },
            DiskOp::Remove {
                path: path("index"),
            },
            DiskOp::Remove {
                path: path("timeindex"),
            },
            DiskOp::Remove {
                path: path("snapshot"),
            },
        ])
    }
}
