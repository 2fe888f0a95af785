//! The file that names the journals' generation and carries the small state of older ones.
//!
//! Replaced in one step, for all journals of a log dir together: from that moment frames of older generations are never
//! read again, and the small state they held is here.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;

use crate::model::{TopicPartition, Uuid};

pub(crate) const FILE: &str = "journal-generation";
const HEADER: &str = "corelane journal 1";

/// What is known of a log beside its segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// First offset that may be read (DeleteRecords moves it inside a segment).
    pub start: i64,
    pub high_watermark: i64,
    /// The log was flushed up to here: if it ends below, that is loss.
    pub flushed: i64,
    /// A break in a journal may have taken flushed records of it, nobody knows how many.
    pub doubtful: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Generation {
    pub number: u64,
    pub logs: BTreeMap<TopicPartition, Known>,
}

impl Generation {
    pub fn encode(&self) -> Bytes {
        let mut text = format!("{HEADER}\ngeneration {}\n", self.number);
        for (tp, k) in &self.logs {
            let doubtful = if k.doubtful { " doubtful" } else { "" };
            let _ = writeln!(
                text,
                "{} {} {} {} {}{doubtful}",
                tp.topic, tp.partition, k.start, k.high_watermark, k.flushed
            );
        }
        let _ = writeln!(text, "crc32c {:08x}", crc32c::crc32c(text.as_bytes()));
        Bytes::from(text)
    }

    /// `None` for a damaged file.
    pub fn decode(bytes: &[u8]) -> Option<Generation> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, crc) = text.split_once("crc32c ")?;
        if u32::from_str_radix(crc.trim_end(), 16).ok()? != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != HEADER {
            return None;
        }
        let number = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
        let mut logs = BTreeMap::new();
        for line in lines {
            let mut words = line.split(' ');
            let topic = Uuid::parse(words.next()?)?;
            let partition = words.next()?.parse().ok()?;
            let mut number = || words.next()?.parse().ok();
            let known = Known {
                start: number()?,
                high_watermark: number()?,
                flushed: number()?,
                doubtful: match words.next() {
                    None => false,
                    Some("doubtful") => true,
                    Some(_) => return None,
                },
            };
            logs.insert(TopicPartition { topic, partition }, known);
        }
        Some(Generation { number, logs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_comes_back_and_a_damaged_one_does_not() {
        let tp = TopicPartition {
            topic: Uuid([3; 16]),
            partition: 4,
        };
        let known = Known {
            start: 5,
            high_watermark: 9,
            flushed: 12,
            doubtful: false,
        };
        let other = TopicPartition { partition: 5, ..tp };
        let doubtful = Known {
            doubtful: true,
            ..known
        };
        let generation = Generation {
            number: 7,
            logs: BTreeMap::from([(tp, known), (other, doubtful)]),
        };
        let bytes = generation.encode();
        assert_eq!(Generation::decode(&bytes), Some(generation));
        for i in 0..bytes.len() - 1 {
            let mut bad = bytes.to_vec();
            bad[i] ^= 1;
            assert_eq!(Generation::decode(&bad), None, "byte {i}");
            assert_eq!(Generation::decode(&bytes[..i]), None, "cut at {i}");
        }
    }
}
