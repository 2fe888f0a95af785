//! Kafka bytes to typed messages and back.
//!
//! Owns: the primitive types ([`Reader`], [`Writer`]), the frame and header of requests and answers, the table of APIs ([`ApiKey`]) and
//! one struct per message ([`msg`]), generated at build time from the texts in `schema/` (every API of Kafka 4.4 in every version,
//! the records of the metadata log and of the internal topics, control records). The language of the texts is told in `build.rs`.
//!
//! A struct has the fields of all versions; `Default` gives Kafka's defaults. Decoding borrows from the frame. What the version lacks
//! keeps its default when decoded and is left out when encoded; a tagged field that equals its default is left out.
//!
//! Invariants:
//! * No bytes make this room panic, loop for long or reserve much: each length and count is checked against the bytes that remain
//!   before anything is reserved, and an array reserves at most 64 KiB ahead of what was read. What does not fit is [`Malformed`].
//! * Bytes behind a message are left for the caller to count ([`Reader::remaining`]), as brokers ignore them. Unknown tagged fields are
//!   skipped, any negative length of a nullable field is null, text that is not UTF-8 reads with U+FFFD: all as Apache Kafka does.
//! * Encoding is total for every version that the message has; another version is the caller's bug and panics.
//!
//! Must not know: what a message means, record batches, connections. `Records` are opaque bytes here.

mod api;
mod header;
mod reader;
mod writer;

use std::borrow::Cow;

pub use api::ApiKey;
pub use header::{
    RequestHeader, frame_bytes, read_record_head, read_response_header, write_record_head,
    write_response_header,
};
pub use reader::{Malformed, Reader};
pub use writer::Writer;

/// The content of a `records` field.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Records<'a> {
    #[default]
    Null,
    Bytes(Cow<'a, [u8]>),
    /// Only for encoding: so many bytes belong here and are sent from elsewhere. See [`Writer::gaps`].
    Gap(u32),
}

impl Records<'_> {
    /// The bytes; none for null and for a gap.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Records::Bytes(bytes) => bytes,
            Records::Null | Records::Gap(_) => &[],
        }
    }
}

/// The generated messages: `msg::produce_request::ProduceRequest` and so on, names as in Kafka's schemas, fields in snake case.
#[allow(clippy::all, unused_mut, unused_variables)]
pub mod msg {
    use super::{Malformed, Reader, Writer};

    mod support {
        pub(super) use super::super::{Malformed, Reader, Records, Writer};
        pub(super) use crate::model::Uuid;
        pub(super) use std::borrow::Cow;

        pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
            *value == T::default()
        }
    }

    /// What the schema says about a message; `api` is -1 for one without a key.
    #[derive(Debug)]
    pub struct Entry {
        /// `request response header data record key value`
        pub kind: &'static str,
        pub name: &'static str,
        pub api: i16,
        pub versions: (i16, i16),
    }

    include!(concat!(env!("OUT_DIR"), "/msg.rs"));
}

#[cfg(test)]
mod tests {
    use super::msg::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
    use super::msg::produce_request::ProduceRequest;
    use super::*;

    #[test]
    fn produce_request_borrows_its_records_from_the_frame() {
        // Produce v9: transactional id null, acks -1, timeout 30000, one topic "t", one partition 0, records "abc", no tags.
        let frame = b"\x00\xff\xff\x00\x00\x75\x30\x02\x02t\x02\x00\x00\x00\x00\x04abc\x00\x00\x00";
        let mut r = Reader::new(frame);
        let produce = ProduceRequest::decode(&mut r, 9).unwrap();
        assert_eq!(r.remaining(), 0);
        assert_eq!((produce.acks, produce.timeout_ms), (-1, 30000));
        let topic = &produce.topic_data[0];
        assert!(matches!(topic.name, Cow::Borrowed("t")));
        let records = &topic.partition_data[0].records;
        assert!(matches!(records, Records::Bytes(Cow::Borrowed(b"abc"))));
        let mut w = Writer::new();
        produce.encode(&mut w, 9);
        assert_eq!(w.as_bytes(), frame);
    }

    #[test]
    fn gap_is_counted_in_the_frame_but_not_written() {
        let partition = |records| FetchResponse {
            responses: vec![FetchableTopicResponse {
                partitions: vec![PartitionData {
                    records,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        for version in [4, 12] {
            let encode = |records| {
                let mut w = Writer::new();
                let start = w.begin_frame();
                write_response_header(&mut w, ApiKey::Fetch, version, 1);
                partition(records).encode(&mut w, version);
                w.end_frame(start);
                (w.gaps.clone(), w.into_bytes())
            };
            let payload = vec![7; 300];
            let (gaps, mut bytes) = encode(Records::Gap(300));
            bytes.splice(gaps[0]..gaps[0], payload.iter().copied());
            assert_eq!(gaps.len(), 1);
            assert_eq!(bytes, encode(Records::Bytes(payload.into())).1);
            assert_eq!(bytes[..4], (bytes.len() as i32 - 4).to_be_bytes());
        }
    }

    #[test]
    fn kafka_defaults_are_the_defaults() {
        let fetch = msg::fetch_request::FetchRequest::default();
        assert_eq!(
            (fetch.replica_id, fetch.session_epoch, fetch.max_bytes),
            (-1, -1, i32::MAX)
        );
        assert_eq!(fetch.cluster_id, None);
        assert!(msg::metadata_request::MetadataRequest::default().allow_auto_topic_creation);
        // Nullable without `default: null` is empty, not null.
        assert_eq!(
            msg::metadata_request::MetadataRequest::default().topics,
            Some(vec![])
        );
    }

    #[test]
    fn api_table_matches_kafka() {
        assert_eq!(ApiKey::from_i16(0), Some(ApiKey::Produce));
        assert_eq!(ApiKey::Produce.versions(), (3, 13));
        assert_eq!(ApiKey::InitProducerId.versions(), (0, 6));
        assert_eq!(ApiKey::InitProducerId.latest_stable(), 5);
        assert_eq!(ApiKey::SaslHandshake.first_flexible(), i16::MAX);
        // 95 keys of Kafka 4.4, of which 4 to 7 have no version left.
        assert_eq!(ApiKey::all().count(), 91);
        assert_eq!((4..8).find_map(ApiKey::from_i16), None);
        assert!(ApiKey::all().all(|api| ApiKey::from_i16(api.code()) == Some(api)));
    }
}
