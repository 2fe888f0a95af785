//! Records of a batch, read and written. Readers borrow; nothing is copied.

use std::borrow::Cow;

use super::check::BatchError;
use super::codec::{Codec, Codecs};
use super::varint;
use super::view::{Batch, TimestampType};
use crate::model::limit;

/// The records of one batch, decompressed if they were compressed.
#[derive(Debug)]
pub struct Records<'a> {
    body: Cow<'a, [u8]>,
    base_offset: i64,
    base_timestamp: i64,
    /// Set on LogAppendTime batches: every record has this time.
    append_time: Option<i64>,
    count: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'r> {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Option<&'r [u8]>,
    pub value: Option<&'r [u8]>,
    headers: &'r [u8],
    headers_count: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'r> {
    /// UTF-8 by contract; not checked.
    pub key: &'r [u8],
    pub value: Option<&'r [u8]>,
}

impl<'a> Records<'a> {
    pub(super) fn of(batch: Batch<'a>, codecs: &mut Codecs) -> Result<Records<'a>, BatchError> {
        let body = match batch.codec() {
            None => return Err(BatchError::invalid("the batch has an unknown codec")),
            Some(Codec::None) => Cow::Borrowed(batch.payload()),
            Some(codec) => {
                let mut body = Vec::new();
                codecs.decompress(
                    codec,
                    batch.payload(),
                    limit::DECOMPRESSED_BYTES_MAX,
                    &mut body,
                )?;
                Cow::Owned(body)
            }
        };
        Ok(Records {
            body,
            base_offset: batch.base_offset(),
            base_timestamp: batch.base_timestamp(),
            append_time: (batch.timestamp_type() == TimestampType::LogAppendTime)
                .then(|| batch.max_timestamp()),
            count: batch.records_count(),
        })
    }

    /// Records that the header declares.
    pub fn count(&self) -> usize {
        self.count.max(0) as usize
    }

    /// The records in order; ends after the first error.
    pub fn iter(&self) -> RecordsIter<'_> {
        RecordsIter {
            rest: &self.body,
            base_offset: self.base_offset,
            base_timestamp: self.base_timestamp,
            append_time: self.append_time,
            left: self.count(),
        }
    }
}

impl<'r> IntoIterator for &'r Records<'_> {
    type Item = Result<Record<'r>, BatchError>;
    type IntoIter = RecordsIter<'r>;
    fn into_iter(self) -> RecordsIter<'r> {
        self.iter()
    }
}

#[derive(Clone, Debug)]
pub struct RecordsIter<'r> {
    rest: &'r [u8],
    base_offset: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
    left: usize,
}

impl<'r> Iterator for RecordsIter<'r> {
    type Item = Result<Record<'r>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        match self.read() {
            Some(record) => {
                self.left -= 1;
                Some(Ok(record))
            }
            None => {
                self.left = 0;
                Some(Err(BatchError::invalid("a record is malformed")))
            }
        }
    }
}

impl<'r> RecordsIter<'r> {
    fn read(&mut self) -> Option<Record<'r>> {
        let raw = RawRecord::read(self.rest)?;
        self.rest = &self.rest[raw.len..];
        Some(Record {
            offset: self.base_offset.checked_add(i64::from(raw.offset_delta))?,
            timestamp: match self.append_time {
                Some(time) => time,
                None => self.base_timestamp.checked_add(raw.timestamp_delta)?,
            },
            key: raw.key,
            value: raw.value,
            headers: raw.headers,
            headers_count: raw.headers_count,
        })
    }
}

impl<'r> Record<'r> {
    pub fn headers(&self) -> Headers<'r> {
        Headers {
            rest: self.headers,
            left: self.headers_count,
        }
    }
}

/// The headers of a record. They end early if they are malformed, which a checked batch's are not.
#[derive(Clone, Debug)]
pub struct Headers<'r> {
    rest: &'r [u8],
    left: i32,
}

impl<'r> Iterator for Headers<'r> {
    type Item = Header<'r>;

    fn next(&mut self) -> Option<Header<'r>> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        let mut at = 0;
        let header = read_bytes(self.rest, &mut at)
            .and_then(|key| Some((key?, read_bytes(self.rest, &mut at)?)))
            .map(|(key, value)| Header { key, value });
        if header.is_none() {
            self.left = 0;
        }
        self.rest = &self.rest[at.min(self.rest.len())..];
        header
    }
}

/// A record with its deltas as they are.
pub(super) struct RawRecord<'r> {
    /// Bytes of it with its length.
    pub len: usize,
    pub attributes: u8,
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<&'r [u8]>,
    pub value: Option<&'r [u8]>,
    pub headers_count: i32,
    pub headers: &'r [u8],
    /// From the key's length on.
    pub tail: &'r [u8],
}

impl<'r> RawRecord<'r> {
    pub fn read(bytes: &'r [u8]) -> Option<RawRecord<'r>> {
        let mut start = 0;
        let len = usize::try_from(varint::read_i32(bytes, &mut start)?).ok()?;
        let body = bytes.get(start..start.checked_add(len)?)?;
        let attributes = *body.first()?;
        let mut at = 1;
        let timestamp_delta = varint::read_i64(body, &mut at)?;
        let offset_delta = varint::read_i32(body, &mut at)?;
        let tail = &body[at..];
        let key = read_bytes(body, &mut at)?;
        let value = read_bytes(body, &mut at)?;
        let headers_count = varint::read_i32(body, &mut at)?;
        Some(RawRecord {
            len: start + len,
            attributes,
            timestamp_delta,
            offset_delta,
            key,
            value,
            headers_count,
            headers: &body[at..],
            tail,
        })
    }
}

/// Length and bytes; any negative length is null.
fn read_bytes<'r>(body: &'r [u8], at: &mut usize) -> Option<Option<&'r [u8]>> {
    let len = varint::read_i32(body, at)?;
    if len < 0 {
        return Some(None);
    }
    let bytes = body.get(*at..at.checked_add(len as usize)?)?;
    *at += len as usize;
    Some(Some(bytes))
}

/// Appends one record.
pub(super) fn write(
    out: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&str, Option<&[u8]>)],
) {
    let bytes_len =
        |bytes: Option<&[u8]>| bytes.map_or(1, |b| varint::len_i32(b.len() as i32) + b.len());
    let mut len = 1
        + varint::len_i64(timestamp_delta)
        + varint::len_i32(offset_delta)
        + bytes_len(key)
        + bytes_len(value)
        + varint::len_i32(headers.len() as i32);
    for (key, value) in headers {
        len += bytes_len(Some(key.as_bytes())) + bytes_len(*value);
    }
    varint::write_i32(
        out,
        i32::try_from(len).expect("a record of 2 GiB is never built"),
    );
    out.push(0);
    varint::write_i64(out, timestamp_delta);
    varint::write_i32(out, offset_delta);
    write_bytes(out, key);
    write_bytes(out, value);
    varint::write_i32(out, headers.len() as i32);
    for (key, value) in headers {
        write_bytes(out, Some(key.as_bytes()));
        write_bytes(out, *value);
    }
}

fn write_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::write_i32(out, -1),
        Some(bytes) => {
            varint::write_i32(out, bytes.len() as i32);
            out.extend_from_slice(bytes);
        }
    }
}

/// `body`'s records with offset deltas 0, 1, 2, ...; the walk has accepted them before.
pub(super) fn renumbered(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 64);
    let mut rest = body;
    let mut index = 0;
    while let Some(raw) = RawRecord::read(rest) {
        let len =
            1 + varint::len_i64(raw.timestamp_delta) + varint::len_i32(index) + raw.tail.len();
        varint::write_i32(&mut out, len as i32);
        out.push(raw.attributes);
        varint::write_i64(&mut out, raw.timestamp_delta);
        varint::write_i32(&mut out, index);
        out.extend_from_slice(raw.tail);
        rest = &rest[raw.len..];
        index += 1;
    }
    out
}
