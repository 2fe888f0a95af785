use corelane::model::Uuid;
use corelane::wire::msg::fetch_request::{FetchPartition, FetchRequest, FetchTopic};

use crate::rig::Rig;

/// Everything of one partition from an offset, or nothing.
pub fn from(name: &str, id: Uuid, partition: i32, offset: i64) -> FetchRequest<'static> {
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![FetchTopic {
            topic: name.to_string().into(),
            topic_id: id,
            partitions: vec![FetchPartition {
                partition,
                fetch_offset: offset,
                partition_max_bytes: 1 << 20,
                ..Default::default()
            }],
        }],
        ..Default::default()
    }
}

impl Rig {
    /// The bytes of one partition from an offset on.
    pub fn fetched(&mut self, name: &str, id: Uuid, partition: i32, offset: i64) -> Vec<u8> {
        let answer = self.once(18, &from(name, id, partition, offset));
        let part = &answer.responses[0].partitions[0];
        assert_eq!(part.error_code, 0);
        part.records.as_bytes().to_vec()
    }
}
