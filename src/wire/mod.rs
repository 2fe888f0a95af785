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
mod tests;
