//! What the shard calls and the store does not do yet; every item goes as its real one comes.

use super::{Config, Store};
use crate::model::TopicPartition;

#[derive(Debug)]
pub enum TimePlan {
    Found { offset: i64, timestamp: i64 },
    NotFound,
    NeedsRead,
}

impl Store {
    pub fn set_config(&mut self, tp: TopicPartition, config: Config) {
        if let Some(log) = self.log_mut(tp) {
            log.set_config(config);
        }
    }
    pub fn offset_of_max_timestamp(&mut self, _tp: TopicPartition, _end: i64) -> TimePlan {
        TimePlan::NotFound
    }
    pub fn offset_for_timestamp(&mut self, _tp: TopicPartition, _ts: i64, _end: i64) -> TimePlan {
        TimePlan::NotFound
    }
}
