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
