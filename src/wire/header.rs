//! Frames and the headers of requests and answers.

use std::borrow::Cow;

use super::{ApiKey, Malformed, Reader, Writer};
use crate::model::limit;

/// The size of the frame behind a size prefix. A negative one, or one above Kafka's bound, is refused: nothing of it is read.
pub fn frame_bytes(prefix: [u8; 4]) -> Result<usize, Malformed> {
    let refuse = |reason| Malformed { reason, at: 0 };
    let size = u32::try_from(i32::from_be_bytes(prefix))
        .map_err(|_| refuse("a frame of negative size"))?;
    if size > limit::REQUEST_BYTES_MAX {
        return Err(refuse("a frame above the size limit"));
    }
    Ok(size as usize)
}

/// What stands before every request. The key and version are as the peer sent them: they may be unknown here.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHeader<'a> {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    pub client_id: Option<Cow<'a, str>>,
}

impl<'a> RequestHeader<'a> {
    /// Reads header version 1, or 2 (with tagged fields) for a flexible version of a known API, also one above the highest known: an
    /// ApiVersions of the future must be readable to be answered. An unknown API reads as version 1 and is for the caller to refuse.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let header = RequestHeader {
            api_key: r.i16(),
            api_version: r.i16(),
            correlation_id: r.i32(),
            client_id: r.nullable_string_inflexible(),
        };
        let flexible = ApiKey::from_i16(header.api_key)
            .is_some_and(|api| header.api_version >= api.first_flexible());
        r.set_flexible(flexible);
        r.skip_tags();
        r.end(header)
    }

    /// For clients.
    pub fn encode(&self, w: &mut Writer) {
        w.i16(self.api_key);
        w.i16(self.api_version);
        w.i32(self.correlation_id);
        w.nullable_string_inflexible(self.client_id.as_deref());
        let flexible = ApiKey::from_i16(self.api_key)
            .is_some_and(|api| self.api_version >= api.first_flexible());
        w.set_flexible(flexible);
        w.no_tags();
    }
}

/// ApiVersions answers with header version 0 always: the client cannot know yet what the broker speaks.
fn response_header_flexible(api: ApiKey, version: i16) -> bool {
    version >= api.first_flexible() && api != ApiKey::ApiVersions
}

pub fn write_response_header(w: &mut Writer, api: ApiKey, version: i16, correlation_id: i32) {
    w.i32(correlation_id);
    w.set_flexible(response_header_flexible(api, version));
    w.no_tags();
}

/// For clients: the correlation id.
pub fn read_response_header(
    r: &mut Reader<'_>,
    api: ApiKey,
    version: i16,
) -> Result<i32, Malformed> {
    let correlation_id = r.i32();
    r.set_flexible(response_header_flexible(api, version));
    r.skip_tags();
    r.end(correlation_id)
}

/// The frame of a record of the metadata log: `[frame version 1][type][version]` as varints, then the record's fields.
pub fn write_record_head(w: &mut Writer, api_key: i16, version: i16) {
    w.uvarint(1);
    w.uvarint(api_key as u32);
    w.uvarint(version as u32);
}

/// Type and version of a record of the metadata log.
pub fn read_record_head(r: &mut Reader<'_>) -> Result<(i16, i16), Malformed> {
    let frame_version = r.uvarint();
    let (api_key, version) = (r.uvarint(), r.uvarint());
    if frame_version != 1 {
        r.fail("a frame version that is not 1");
    }
    match (i16::try_from(api_key), i16::try_from(version)) {
        (Ok(api_key), Ok(version)) => r.end((api_key, version)),
        _ => {
            r.fail("a record type or version above 32767");
            r.end((0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msg;

    #[test]
    fn frame_of_negative_or_excessive_size_is_refused() {
        assert_eq!(frame_bytes([0, 0, 0, 7]), Ok(7));
        // socket.request.max.bytes is 100 MiB: exactly that is taken, one more is not.
        assert_eq!(frame_bytes(104_857_600u32.to_be_bytes()), Ok(104_857_600));
        assert!(frame_bytes(104_857_601u32.to_be_bytes()).is_err());
        assert!(frame_bytes((-1i32).to_be_bytes()).is_err());
        assert!(frame_bytes(*b"GET ").is_err());
    }

    #[test]
    fn request_header_is_flexible_by_key_and_version() {
        // ApiVersions v3 as librdkafka sends it: key 18, version 3, correlation 1, client id "rdkafka", no tags.
        let bytes = b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x07rdkafka\x00rest";
        let mut r = Reader::new(bytes);
        let header = RequestHeader::decode(&mut r).unwrap();
        assert_eq!((header.api_key, header.api_version), (18, 3));
        assert_eq!(header.client_id.as_deref(), Some("rdkafka"));
        assert_eq!(r.remaining(), 4);
        // Version 0 has no tags; a null client id.
        let bytes = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff";
        let header = RequestHeader::decode(&mut Reader::new(bytes)).unwrap();
        assert_eq!(header.client_id, None);
        // Version 99 is unknown, its header is that of the last version: without the tag count it does not parse.
        let bytes = b"\x00\x12\x00\x63\x00\x00\x00\x01\xff\xff";
        assert!(RequestHeader::decode(&mut Reader::new(bytes)).is_err());
        let bytes = b"\x00\x12\x00\x63\x00\x00\x00\x01\xff\xff\x00junk";
        assert!(RequestHeader::decode(&mut Reader::new(bytes)).is_ok());
    }

    #[test]
    fn headers_equal_those_of_the_schema() {
        for (api, version, schema_version) in [
            (ApiKey::Fetch, 11, 1),
            (ApiKey::Fetch, 12, 2),
            (ApiKey::SaslHandshake, 1, 1),
        ] {
            let header = RequestHeader {
                api_key: api.code(),
                api_version: version,
                correlation_id: 77,
                client_id: Some("c".into()),
            };
            let mut w = Writer::new();
            header.encode(&mut w);
            let bytes = w.into_bytes();
            let mut r = Reader::new(&bytes);
            let schema = msg::request_header::RequestHeader::decode(&mut r, schema_version);
            let schema = schema.unwrap();
            assert_eq!(r.remaining(), 0);
            assert_eq!(
                (schema.request_api_version, schema.correlation_id),
                (version, 77)
            );
            assert_eq!(RequestHeader::decode(&mut Reader::new(&bytes)), Ok(header));
        }
    }

    #[test]
    fn response_header_of_api_versions_has_no_tags() {
        let bytes_of = |api, version| {
            let mut w = Writer::new();
            write_response_header(&mut w, api, version, 5);
            w.into_bytes()
        };
        assert_eq!(bytes_of(ApiKey::ApiVersions, 5), [0, 0, 0, 5]);
        assert_eq!(bytes_of(ApiKey::Metadata, 8), [0, 0, 0, 5]);
        assert_eq!(bytes_of(ApiKey::Metadata, 9), [0, 0, 0, 5, 0]);
        let read = read_response_header(&mut Reader::new(&[0, 0, 0, 5, 0]), ApiKey::Metadata, 9);
        assert_eq!(read, Ok(5));
    }

    #[test]
    fn metadata_record_head_round_trips() {
        let mut w = Writer::new();
        write_record_head(&mut w, 200, 2);
        assert_eq!(w.as_bytes(), [1, 0xc8, 1, 2]);
        assert_eq!(
            read_record_head(&mut Reader::new(w.as_bytes())),
            Ok((200, 2))
        );
        assert!(read_record_head(&mut Reader::new(&[2, 0, 0])).is_err());
    }
}
