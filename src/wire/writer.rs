//! Writing Kafka's primitive types.
//!
//! Writing cannot fail: what the version has no place for is left out, null where the version has none is written as empty, and a string
//! over Kafka's bound is cut at a character.

use super::Records;
use super::reader::STRING_BYTES_MAX;
use crate::model::Uuid;

#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
    flexible: bool,
    /// Positions at which the bytes of a [`Records::Gap`] belong, in order. They are not in the buffer: the one who sends puts them there.
    pub gaps: Vec<usize>,
    gap_bytes: usize,
}

/// Where the count of a struct's tagged fields stands.
#[derive(Clone, Copy)]
pub(super) struct Tags(usize);

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    pub fn with_capacity(bytes: usize) -> Writer {
        Writer::over(Vec::with_capacity(bytes))
    }

    /// Appends to a buffer, so that its allocation can be used again.
    pub fn over(bytes: Vec<u8>) -> Writer {
        Writer {
            bytes,
            ..Writer::default()
        }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that the gaps stand for.
    pub fn gap_bytes(&self) -> usize {
        self.gap_bytes
    }

    /// Starts a frame: four bytes for its size, which [`Writer::end_frame`] fills in.
    pub fn begin_frame(&mut self) -> usize {
        assert!(self.gaps.is_empty(), "one frame with gaps to a writer");
        self.i32(0);
        self.len()
    }

    /// Ends the frame that starts at `start` (what [`Writer::begin_frame`] gave): its size counts the gaps too.
    pub fn end_frame(&mut self, start: usize) {
        let size = self.len() - start + self.gap_bytes;
        let size = i32::try_from(size).expect("an answer stays below 2 GiB");
        self.bytes[start - 4..start].copy_from_slice(&size.to_be_bytes());
    }

    pub(super) fn begin(&mut self, version: i16, versions: (i16, i16), first_flexible: i16) {
        assert!(
            version >= versions.0 && version <= versions.1,
            "the message has no version {version}"
        );
        self.flexible = version >= first_flexible;
    }

    pub(super) fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn bool(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    pub fn i8(&mut self, value: i8) {
        self.raw(&value.to_be_bytes());
    }

    pub fn i16(&mut self, value: i16) {
        self.raw(&value.to_be_bytes());
    }

    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    pub fn i32(&mut self, value: i32) {
        self.raw(&value.to_be_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.raw(&value.to_be_bytes());
    }

    pub fn f64(&mut self, value: f64) {
        self.raw(&value.to_be_bytes());
    }

    pub fn uuid(&mut self, value: Uuid) {
        self.raw(&value.0);
    }

    pub fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Zigzag varint of 32 bits.
    pub fn varint(&mut self, value: i32) {
        self.uvarint(((value << 1) ^ (value >> 31)) as u32);
    }

    /// Zigzag varint of 64 bits.
    pub fn varlong(&mut self, value: i64) {
        let mut value = ((value << 1) ^ (value >> 63)) as u64;
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A length or count, `None` for null.
    fn length(&mut self, length: Option<usize>, short: bool) {
        let length = length.map_or(-1, |length| {
            i32::try_from(length).expect("a field stays below 2 GiB")
        });
        if self.flexible {
            self.uvarint((length as u32).wrapping_add(1));
        } else if short {
            self.i16(length as i16);
        } else {
            self.i32(length);
        }
    }

    pub fn string(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(STRING_BYTES_MAX)];
        self.length(Some(text.len()), true);
        self.raw(text.as_bytes());
    }

    pub fn nullable_string(&mut self, text: Option<&str>, nulls: bool) {
        match text {
            None if nulls => self.length(None, true),
            text => self.string(text.unwrap_or_default()),
        }
    }

    pub(super) fn nullable_string_inflexible(&mut self, text: Option<&str>) {
        let flexible = std::mem::replace(&mut self.flexible, false);
        self.nullable_string(text, true);
        self.flexible = flexible;
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.length(Some(bytes.len()), false);
        self.raw(bytes);
    }

    pub fn nullable_bytes(&mut self, bytes: Option<&[u8]>, nulls: bool) {
        match bytes {
            None if nulls => self.length(None, false),
            bytes => self.bytes(bytes.unwrap_or_default()),
        }
    }

    pub fn records(&mut self, records: &Records<'_>, nulls: bool) {
        match records {
            Records::Null => self.nullable_bytes(None, nulls),
            Records::Bytes(bytes) => self.bytes(bytes),
            Records::Gap(bytes) => {
                let bytes = *bytes as usize;
                self.length(Some(bytes), false);
                self.gaps.push(self.bytes.len());
                self.gap_bytes += bytes;
            }
        }
    }

    pub fn array<T>(&mut self, list: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.length(Some(list.len()), false);
        for element in list {
            each(self, element);
        }
    }

    pub fn nullable_array<T>(
        &mut self,
        list: Option<&[T]>,
        nulls: bool,
        each: impl FnMut(&mut Self, &T),
    ) {
        match list {
            None if nulls => self.length(None, false),
            list => self.array(list.unwrap_or_default(), each),
        }
    }

    pub fn nullable_struct<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        match value {
            None => self.i8(-1),
            Some(value) => {
                self.i8(1);
                write(self, value);
            }
        }
    }

    /// The same as a tagged field: there the byte in front is a varint, 0 for null.
    pub fn nullable_struct_tagged<T>(
        &mut self,
        value: Option<&T>,
        write: impl FnOnce(&mut Self, &T),
    ) {
        self.uvarint(u32::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Ends a struct that has no tagged fields.
    pub fn no_tags(&mut self) {
        if self.flexible {
            self.bytes.push(0);
        }
    }

    /// Opens the tagged fields of a struct; [`Writer::tagged`] counts them.
    pub(super) fn tags(&mut self) -> Tags {
        self.no_tags();
        Tags(self.bytes.len().saturating_sub(1))
    }

    /// One tagged field; callers write them in the order of their tags.
    pub(super) fn tagged(&mut self, tags: Tags, tag: u32, write: impl FnOnce(&mut Self)) {
        assert!(self.flexible, "tagged fields need a flexible version");
        self.bytes[tags.0] += 1;
        self.uvarint(tag);
        let start = self.bytes.len();
        write(self);
        // The size stands before the field and is only known now: move the field behind it. These fields are small and rare.
        let size = (self.bytes.len() - start) as u32;
        self.uvarint(size);
        let size_bytes = self.bytes.len() - start - size as usize;
        self.bytes[start..].rotate_right(size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reader;

    #[test]
    fn varints_have_the_published_values() {
        // From the Protocol Buffers encoding guide.
        let mut w = Writer::new();
        w.uvarint(150);
        w.varint(-2);
        w.varint(i32::MIN);
        w.varlong(i64::MIN);
        let expected = b"\x96\x01\x03\xff\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(w.as_bytes(), expected);
    }

    #[test]
    fn string_over_kafkas_bound_is_cut_at_a_character() {
        let mut w = Writer::new();
        w.string(&"é".repeat(20_000));
        let bytes = w.into_bytes();
        let mut r = Reader::new(&bytes);
        // 32767 is odd and every character has two bytes.
        assert_eq!(r.string().len(), 32766);
        assert_eq!((r.finish(), r.remaining()), (Ok(()), 0));
    }

    #[test]
    fn null_where_the_version_has_none_is_written_empty() {
        let mut w = Writer::new();
        w.nullable_string(None, false);
        w.nullable_bytes(None, false);
        w.nullable_array::<i32>(None, false, |w, x| w.i32(*x));
        w.records(&Records::Null, false);
        assert_eq!(w.as_bytes(), [0; 14]);
    }

    #[test]
    fn tagged_field_of_any_size_has_its_size_in_front() {
        for length in [0, 1, 127, 128, 300, 20_000] {
            let mut w = Writer::new();
            w.set_flexible(true);
            w.raw(b"before");
            let tags = w.tags();
            w.tagged(tags, 3, |w| w.raw(&vec![9; length]));
            w.tagged(tags, 7, |w| w.i8(5));
            let bytes = w.into_bytes();
            let mut r = Reader::new(&bytes[6..]);
            assert_eq!((r.uvarint(), r.uvarint()), (2, 3));
            assert_eq!(r.uvarint() as usize, length);
            let rest = &bytes[6 + r.position() + length..];
            assert_eq!(rest, [7, 1, 5]);
        }
    }
}
