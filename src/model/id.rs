//! Ids as types of their own, so that one cannot be passed for another.

use std::fmt;

/// A 16-byte id in Kafka's `Uuid` form: printed as URL-safe base64 without padding (22 characters).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

/// The id of a topic; zero means "none".
pub type TopicId = Uuid;

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Uuid {
    pub const ZERO: Uuid = Uuid([0; 16]);

    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Parses Kafka's 22-character base64 form; `None` for anything else.
    pub fn parse(text: &str) -> Option<Uuid> {
        let text = text.trim_end_matches('=').as_bytes();
        if text.len() != 22 {
            return None;
        }
        let mut bits: u128 = 0;
        for (i, c) in text.iter().enumerate() {
            let digit = BASE64_URL.iter().position(|b| b == c)? as u128;
            if i == 21 {
                if digit & 0xf != 0 {
                    return None;
                }
                bits = bits << 2 | digit >> 4;
            } else {
                bits = bits << 6 | digit;
            }
        }
        Some(Uuid(bits.to_be_bytes()))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from_be_bytes(self.0);
        for i in 0..21 {
            let digit = (bits >> (128 - 6 * (i + 1))) & 0x3f;
            write!(f, "{}", BASE64_URL[digit as usize] as char)?;
        }
        write!(f, "{}", BASE64_URL[((bits & 0x3) << 4) as usize] as char)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition of a topic, by the topic's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TopicPartition {
    pub topic: TopicId,
    pub partition: i32,
}

/// A shard within its process, from 0; at most 999.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardIndex(pub u16);

/// A Kafka node: `process * 1000 + shard`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub i32);

/// Nodes of one process: node ids of process p are `[p * 1000 .. (p + 1) * 1000)`.
pub const NODES_PER_PROCESS: i32 = 1000;

impl NodeId {
    pub const NONE: NodeId = NodeId(-1);

    pub fn of(process: i32, shard: ShardIndex) -> NodeId {
        NodeId(process * NODES_PER_PROCESS + i32::from(shard.0))
    }

    pub fn process(self) -> i32 {
        self.0.div_euclid(NODES_PER_PROCESS)
    }

    pub fn shard(self) -> ShardIndex {
        ShardIndex(self.0.rem_euclid(NODES_PER_PROCESS) as u16)
    }
}

/// A connection within its shard. The shell assigns it and never gives one out twice in the life of a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConnId(pub u64);

/// The place of an answer in the order of its connection: slot 0 is the connection's first request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_prints_as_kafka_does() {
        // Kafka's Uuid.ONE_UUID (0, 1) and ZERO_UUID; Uuid(1,2) computed with Java's Base64.getUrlEncoder().
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        let mut one = [0; 16];
        one[15] = 1;
        assert_eq!(Uuid(one).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(Uuid::parse("AAAAAAAAAAAAAAAAAAAAAQ"), Some(Uuid(one)));
        assert_eq!(Uuid::parse("AAAAAAAAAAAAAAAAAAAAAR"), None);
        let all = Uuid([0xff; 16]);
        assert_eq!(all.to_string(), "_____________________w");
        assert_eq!(Uuid::parse(&all.to_string()), Some(all));
    }

    #[test]
    fn node_id_holds_process_and_shard() {
        let node = NodeId::of(3, ShardIndex(17));
        assert_eq!(
            (node.0, node.process(), node.shard()),
            (3017, 3, ShardIndex(17))
        );
    }
}
