//! Reading Kafka's primitive types from a borrowed frame.
//!
//! A reader fails once: the first fault is kept, the rest of the frame counts as empty, and every later read gives a default. Generated
//! code is therefore straight lines without an error branch per field; `end` reports the fault. Nothing loops past it: each count is
//! checked against the bytes that remain, and there are none.

use std::borrow::Cow;
use std::fmt;

use super::Records;
use crate::model::Uuid;

/// Bytes that an array reserves before its first element was read; a longer one grows as its elements arrive.
const RESERVE_BYTES_MAX: usize = 64 * 1024;

/// Kafka's bound on a string, bytes, in both encodings.
pub(super) const STRING_BYTES_MAX: usize = 0x7fff;

/// Why bytes are not the message they should be, and where. Closes the connection they came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    pub reason: &'static str,
    /// Position of the offending byte from the start of the reader's bytes.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed at byte {}: {}", self.at, self.reason)
    }
}

impl std::error::Error for Malformed {}

pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    flexible: bool,
    fault: Option<Malformed>,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            bytes,
            position: 0,
            flexible: false,
            fault: None,
        }
    }

    /// Bytes not read yet; after a message, those that it did not want. A broker ignores (and counts) them.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Opens a message: the encoding of its strings and arrays follows from the version.
    pub(super) fn begin(
        &mut self,
        version: i16,
        versions: (i16, i16),
        first_flexible: i16,
    ) -> Result<(), Malformed> {
        if version < versions.0 || version > versions.1 {
            self.fail("a version that this message does not have");
        }
        self.flexible = version >= first_flexible;
        self.end(())
    }

    pub(super) fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    /// Closes a message: what was read, or the first fault.
    pub(super) fn end<T>(&self, message: T) -> Result<T, Malformed> {
        self.finish().map(|()| message)
    }

    /// The first fault, for formats that are read field by field.
    pub fn finish(&self) -> Result<(), Malformed> {
        self.fault.map_or(Ok(()), Err)
    }

    #[cold]
    pub fn fail(&mut self, reason: &'static str) {
        let at = self.position;
        self.fault.get_or_insert(Malformed { reason, at });
        self.position = self.bytes.len();
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        if count > self.remaining() {
            self.fail("more bytes announced than there are");
            return None;
        }
        let taken = &self.bytes[self.position..self.position + count];
        self.position += count;
        Some(taken)
    }

    fn fixed<const N: usize>(&mut self) -> [u8; N] {
        match self.bytes[self.position..].first_chunk::<N>() {
            Some(bytes) => {
                self.position += N;
                *bytes
            }
            None => {
                self.fail("the message ends within a field");
                [0; N]
            }
        }
    }

    pub fn bool(&mut self) -> bool {
        self.i8() != 0
    }

    pub fn i8(&mut self) -> i8 {
        i8::from_be_bytes(self.fixed())
    }

    pub fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.fixed())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.fixed())
    }

    pub fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.fixed())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.fixed())
    }

    pub fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.fixed())
    }

    pub fn f64(&mut self) -> f64 {
        f64::from_be_bytes(self.fixed())
    }

    pub fn uuid(&mut self) -> Uuid {
        Uuid(self.fixed())
    }

    /// Seven bits a byte, lowest first, at most five bytes; as in Kafka, bits past the 32nd are lost.
    pub fn uvarint(&mut self) -> u32 {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.fixed();
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        self.fail("a varint of more than five bytes");
        0
    }

    /// Zigzag varint of 32 bits.
    pub fn varint(&mut self) -> i32 {
        let value = self.uvarint();
        ((value >> 1) as i32) ^ -((value & 1) as i32)
    }

    /// Zigzag varint of 64 bits, at most ten bytes.
    pub fn varlong(&mut self) -> i64 {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let [byte] = self.fixed();
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return ((value >> 1) as i64) ^ -((value & 1) as i64);
            }
        }
        self.fail("a varint of more than ten bytes");
        0
    }

    /// A length or count; every negative one means null, as in Kafka.
    fn length(&mut self, short: bool) -> Option<usize> {
        let length = if self.flexible {
            // The subtraction wraps as Java's does.
            (self.uvarint() as i32).wrapping_sub(1)
        } else if short {
            i32::from(self.i16())
        } else {
            self.i32()
        };
        // After a fault there is nothing to be null about.
        if self.fault.is_some() {
            return Some(0);
        }
        usize::try_from(length).ok()
    }

    fn required<T: Default>(&mut self, value: Option<T>) -> T {
        value.unwrap_or_else(|| {
            self.fail("null where the version has none");
            T::default()
        })
    }

    pub fn string(&mut self) -> Cow<'a, str> {
        let length = self.length(true);
        let length = self.required(length);
        self.text(length)
    }

    pub fn nullable_string(&mut self, nulls: bool) -> Option<Cow<'a, str>> {
        match self.length(true) {
            Some(length) => Some(self.text(length)),
            None => self.null(nulls),
        }
    }

    /// The client id of a request header is never compact: a broker must be able to read the header of a version it does not know.
    pub(super) fn nullable_string_inflexible(&mut self) -> Option<Cow<'a, str>> {
        let flexible = std::mem::replace(&mut self.flexible, false);
        let text = self.nullable_string(true);
        self.flexible = flexible;
        text
    }

    /// Not UTF-8 is not malformed: as in Java, what does not decode becomes U+FFFD.
    fn text(&mut self, length: usize) -> Cow<'a, str> {
        if length > STRING_BYTES_MAX {
            self.fail("a string of more than 32767 bytes");
        }
        String::from_utf8_lossy(self.take(length).unwrap_or_default())
    }

    pub fn bytes(&mut self) -> Cow<'a, [u8]> {
        let length = self.length(false);
        let length = self.required(length);
        Cow::Borrowed(self.take(length).unwrap_or_default())
    }

    pub fn nullable_bytes(&mut self, nulls: bool) -> Option<Cow<'a, [u8]>> {
        match self.length(false) {
            Some(length) => Some(Cow::Borrowed(self.take(length).unwrap_or_default())),
            None => self.null(nulls),
        }
    }

    pub fn records(&mut self, nulls: bool) -> Records<'a> {
        match self.nullable_bytes(nulls) {
            Some(bytes) => Records::Bytes(bytes),
            None => Records::Null,
        }
    }

    fn null<T>(&mut self, nulls: bool) -> Option<T> {
        if !nulls {
            self.fail("null where the version has none");
        }
        None
    }

    /// `bytes_min`: the fewest bytes of an element, 0 if it may have none.
    pub fn array<T>(&mut self, bytes_min: usize, each: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.length(false);
        let count = self.required(count);
        self.elements(count, bytes_min, each)
    }

    pub fn nullable_array<T>(
        &mut self,
        nulls: bool,
        bytes_min: usize,
        each: impl FnMut(&mut Self) -> T,
    ) -> Option<Vec<T>> {
        match self.length(false) {
            Some(count) => Some(self.elements(count, bytes_min, each)),
            None => self.null(nulls),
        }
    }

    fn elements<T>(
        &mut self,
        count: usize,
        bytes_min: usize,
        mut each: impl FnMut(&mut Self) -> T,
    ) -> Vec<T> {
        // Elements that need no bytes still need one each, as in Kafka: a count is never above the bytes that remain.
        if count > self.remaining() / bytes_min.max(1) {
            self.fail("more elements announced than there are bytes");
            return Vec::new();
        }
        let reserve = count.min(RESERVE_BYTES_MAX / size_of::<T>().max(1));
        let mut list = Vec::with_capacity(reserve);
        for _ in 0..count {
            list.push(each(self));
            if self.fault.is_some() {
                break;
            }
        }
        list
    }

    /// A struct behind a byte that is negative for null.
    pub fn nullable_struct<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.i8() >= 0 && self.fault.is_none()).then(|| read(self))
    }

    /// The same as a tagged field: there the byte in front is a varint, 0 for null.
    pub fn nullable_struct_tagged<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.uvarint() as i32 > 0).then(|| read(self))
    }

    /// The tagged fields at the end of a flexible struct. `known` reads the field of a tag, or returns false for one it does not know,
    /// which is skipped. As in Kafka, order and repetition do not matter, and the announced size of a known field is not looked at.
    pub fn tags(&mut self, mut known: impl FnMut(&mut Self, u32) -> bool) {
        if !self.flexible {
            return;
        }
        let count = self.uvarint();
        for _ in 0..count {
            let tag = self.uvarint();
            let size = self.uvarint();
            if self.fault.is_some() {
                return;
            }
            if !known(self, tag) {
                self.take(size as usize);
            }
        }
    }

    pub fn skip_tags(&mut self) {
        self.tags(|_, _| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flexible(bytes: &[u8]) -> Reader<'_> {
        let mut r = Reader::new(bytes);
        r.set_flexible(true);
        r
    }

    #[test]
    fn varints_have_the_published_values() {
        // From the Protocol Buffers encoding guide: 150, and zigzag of -1, 1, -2, 2147483647, -2147483648.
        assert_eq!(Reader::new(b"\x96\x01").uvarint(), 150);
        for (bytes, value) in [
            (&b"\x01"[..], -1),
            (b"\x02", 1),
            (b"\x03", -2),
            (b"\xfe\xff\xff\xff\x0f", i32::MAX),
            (b"\xff\xff\xff\xff\x0f", i32::MIN),
        ] {
            assert_eq!(Reader::new(bytes).varint(), value);
            assert_eq!(Reader::new(bytes).varlong(), i64::from(value));
        }
        let lowest = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(Reader::new(lowest).varlong(), i64::MIN);
    }

    #[test]
    fn varint_without_end_is_malformed() {
        for bytes in [&b"\xff\xff\xff\xff\xff\x01"[..], b"\x80", b""] {
            let mut r = Reader::new(bytes);
            r.uvarint();
            assert!(r.finish().is_err(), "{bytes:?}");
        }
        let mut r = Reader::new(&[0x80; 11]);
        r.varlong();
        assert!(r.finish().is_err());
    }

    #[test]
    fn every_negative_length_is_null_where_null_may_be() {
        // Kafka reads array count -2 in a nullable array as null, and so with strings and bytes.
        let mut r = Reader::new(b"\xff\xff\xff\xfe\xff\xfe\xff\xff\xff\xfe");
        assert_eq!(r.nullable_array(true, 4, Reader::i32), None);
        assert_eq!(r.nullable_string(true), None);
        assert_eq!(r.nullable_bytes(true), None);
        assert_eq!((r.finish(), r.remaining()), (Ok(()), 0));
        // A compact length of 2^32-1 wraps to -2 in Java.
        let mut r = flexible(b"\xff\xff\xff\xff\x0f");
        assert_eq!(r.nullable_array(true, 4, Reader::i32), None);
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn null_is_malformed_where_it_may_not_be() {
        let faults: [fn(&mut Reader<'_>); 6] = [
            |r| drop(r.string()),
            |r| drop(r.bytes()),
            |r| drop(r.array(4, Reader::i32)),
            |r| drop(r.nullable_string(false)),
            |r| drop(r.nullable_bytes(false)),
            |r| drop(r.nullable_array(false, 4, Reader::i32)),
        ];
        for fault in faults {
            for bytes in [&b"\xff\xff\xff\xff"[..], b"\xff\xfe\xff\xfe", b"\x80\0\0\0"] {
                let mut r = Reader::new(bytes);
                fault(&mut r);
                assert!(r.finish().is_err());
            }
            let mut r = flexible(b"\0");
            fault(&mut r);
            assert!(r.finish().is_err());
        }
    }

    #[test]
    fn count_above_the_bytes_that_remain_is_malformed_before_it_reserves() {
        // KAFKA-14063: a frame of a few bytes that claims 2^31-1 elements.
        let mut r = Reader::new(b"\x7f\xff\xff\xff\0\0\0\0");
        assert_eq!(r.array(1, Reader::i8).capacity(), 0);
        assert!(r.finish().is_err());
        // Three elements of four bytes do not fit in eleven; two in eight do.
        let mut r = Reader::new(b"\0\0\0\x03\0\0\0\x01\0\0\0\x02\0\0\0");
        assert_eq!(r.array(4, Reader::i32).capacity(), 0);
        assert!(r.finish().is_err());
        let mut r = flexible(b"\x03\0\0\0\x01\0\0\0\x02");
        assert_eq!(r.array(4, Reader::i32), [1, 2]);
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn text_that_is_not_utf8_reads_with_replacement_characters() {
        assert_eq!(Reader::new(b"\0\x03a\xffb").string(), "a\u{fffd}b");
        assert!(matches!(
            Reader::new(b"\0\x02\xc3\xa9").string(),
            Cow::Borrowed("é")
        ));
    }

    #[test]
    fn string_over_kafkas_bound_is_malformed() {
        let text = |length: usize| {
            let mut bytes = vec![b'x'; length + 3];
            // Two-byte compact lengths end at 16383: these take three.
            let compact = length as u32 + 1;
            bytes[0] = compact as u8 | 0x80;
            bytes[1] = (compact >> 7) as u8 | 0x80;
            bytes[2] = (compact >> 14) as u8;
            let mut r = flexible(&bytes);
            let read = r.string().len();
            r.finish().map(|()| read)
        };
        assert_eq!(text(32767), Ok(32767));
        assert!(text(32768).is_err());
    }

    #[test]
    fn first_fault_is_the_one_reported() {
        let mut r = Reader::new(b"\0\x05ab");
        r.string();
        let first = r.finish();
        assert_eq!(first.unwrap_err().at, 2);
        assert_eq!((r.i64(), r.uvarint(), r.remaining()), (0, 0, 0));
        assert_eq!(r.finish(), first);
    }
}
