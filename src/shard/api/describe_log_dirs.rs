//! DescribeLogDirs (35), versions 1 to 5; KIP-113, KIP-827, KIP-1066.
//!
//! A node tells of its own partitions, so that what every node tells adds up; the sizes of the file system are those of the
//! one log dir that the nodes of a process share. A leader has no lag, and nothing moves between dirs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Call, Flow, answer};
use crate::log::Space;
use crate::model::ErrorCode;
use crate::model::limit::ADMIN_WAIT_MS;
use crate::shard::park::{ParkId, Parked};
use crate::shard::{Actions, Shard};
use crate::wire::msg::describe_log_dirs_request::DescribeLogDirsRequest;
use crate::wire::msg::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use crate::wire::{Malformed, Reader};

/// A DescribeLogDirs that waits until the file system was asked.
#[derive(Debug)]
pub struct LogDirsWait {
    call: Call,
    /// `None`: everything.
    asked: Option<BTreeSet<(String, i32)>>,
}

impl Shard {
    pub(super) fn describe_log_dirs(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeLogDirsRequest::decode(r, call.version)?;
        let asked = request.topics.as_ref().map(|topics| {
            let partitions = topics.iter().flat_map(|topic| {
                let partitions = topic.partitions.iter();
                partitions.map(|partition| (topic.topic.to_string(), *partition))
            });
            partitions.collect()
        });
        let id = self.parked.reserve();
        self.parked.put(
            id,
            Parked::LogDirs(LogDirsWait { call, asked }),
            self.now.mono.after_ms(ADMIN_WAIT_MS),
        );
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = Some(id);
        }
        self.log_dirs_waiting.push(id);
        self.store.ask_space();
        Ok(Flow::Parked)
    }

    /// The file system has answered: so is everybody who waits for it.
    pub(in crate::shard) fn space_told(&mut self, space: Option<Space>, actions: &mut Actions) {
        let waiting: Vec<ParkId> = std::mem::take(&mut self.log_dirs_waiting);
        for id in waiting {
            if let Some(Parked::LogDirs(wait)) = self.parked.take(id) {
                self.log_dirs_answer(wait, space, actions);
            }
        }
    }

    pub(in crate::shard) fn log_dirs_expired(&mut self, wait: LogDirsWait, actions: &mut Actions) {
        self.log_dirs_answer(wait, None, actions);
    }

    /// Without `space` the device did not answer, or with an error.
    fn log_dirs_answer(&mut self, wait: LogDirsWait, space: Option<Space>, actions: &mut Actions) {
        let failed = self.store.failed().is_some() || space.is_none();
        let error = match failed {
            true => ErrorCode::KafkaStorageError,
            false => ErrorCode::None,
        };
        let bytes = |bytes: fn(Space) -> u64| match space {
            Some(space) if !failed => i64::try_from(bytes(space)).unwrap_or(i64::MAX),
            _ => -1,
        };
        let result = DescribeLogDirsResult {
            error_code: error.code(),
            log_dir: self.config.log_dir.as_str().into(),
            topics: if failed {
                Vec::new()
            } else {
                self.sizes(wait.asked.as_ref())
            },
            total_bytes: bytes(|space| space.total),
            usable_bytes: bytes(|space| space.usable),
            is_cordoned: false,
        };
        let response = DescribeLogDirsResponse {
            results: vec![result],
            ..Default::default()
        };
        let bytes = answer(wait.call, |w, version| response.encode(w, version));
        self.reply(wait.call, bytes, actions);
    }

    fn sizes(&self, asked: Option<&BTreeSet<(String, i32)>>) -> Vec<DescribeLogDirsTopic<'static>> {
        let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
        for (tp, hosted) in &self.hosted {
            let Some(log) = self.store.log(*tp) else {
                continue;
            };
            let key = (hosted.topic.name.to_string(), tp.partition);
            if asked.is_some_and(|asked| !asked.contains(&key)) {
                continue;
            }
            let partition = DescribeLogDirsPartition {
                partition_index: tp.partition,
                partition_size: i64::try_from(log.size_bytes()).unwrap_or(i64::MAX),
                offset_lag: 0,
                is_future_key: false,
            };
            topics.entry(key.0).or_default().push(partition);
        }
        topics
            .into_iter()
            .map(|(name, partitions)| DescribeLogDirsTopic {
                name: name.into(),
                partitions,
            })
            .collect()
    }
}
