//! Zigzag LEB128 as records use it (the protocol's own varints are unsigned and live in `wire`).

/// Bytes of the longest `i32`.
pub const VARINT_BYTES_MAX: usize = 5;

/// Reads an `i32` at `*at`. `None`: the bytes end, or a sixth byte would be needed.
#[inline(always)]
pub fn read_i32(bytes: &[u8], at: &mut usize) -> Option<i32> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        let raw = u32::from(first);
        return Some((raw >> 1) as i32 ^ -((raw & 1) as i32));
    }
    read_i32_long(bytes, at)
}

fn read_i32_long(bytes: &[u8], at: &mut usize) -> Option<i32> {
    let mut raw: u32 = 0;
    for i in 0..VARINT_BYTES_MAX {
        let byte = *bytes.get(*at + i)?;
        // Kafka drops the bits that a fifth byte has too many, as this shift does.
        raw |= u32::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Some((raw >> 1) as i32 ^ -((raw & 1) as i32));
        }
    }
    None
}

/// Reads an `i64` at `*at`. `None`: the bytes end, or an eleventh byte would be needed.
#[inline(always)]
pub fn read_i64(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        let raw = u64::from(first);
        return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
    }
    read_i64_long(bytes, at)
}

fn read_i64_long(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let mut raw: u64 = 0;
    for i in 0..10 {
        let byte = *bytes.get(*at + i)?;
        raw |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
        }
    }
    None
}

pub fn write_i32(out: &mut Vec<u8>, value: i32) {
    let mut raw = ((value << 1) ^ (value >> 31)) as u32;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

pub fn write_i64(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

pub fn len_i32(value: i32) -> usize {
    let raw = ((value << 1) ^ (value >> 31)) as u32;
    (38 - raw.leading_zeros() as usize) / 7 + usize::from(raw == 0)
}

pub fn len_i64(value: i64) -> usize {
    let raw = ((value << 1) ^ (value >> 63)) as u64;
    (70 - raw.leading_zeros() as usize) / 7 + usize::from(raw == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zigzag_follows_protocol_buffers_table() {
        // The table of protobuf's encoding page, and the ends of the ranges.
        for (value, bytes) in [
            (0, &[0u8][..]),
            (-1, &[1]),
            (1, &[2]),
            (-2, &[3]),
            (63, &[0x7e]),
            (64, &[0x80, 1]),
            (i32::MAX, &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i32::MIN, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ] {
            let mut out = Vec::new();
            write_i32(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(read_i32(bytes, &mut 0), Some(value));
        }
        let longest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read_i64(&longest, &mut 0), Some(i64::MIN));
    }

    #[test]
    fn endless_varints_are_refused() {
        assert_eq!(read_i32(&[0x80; 16], &mut 0), None);
        assert_eq!(read_i64(&[0x80; 16], &mut 0), None);
        assert_eq!(read_i32(&[0x80], &mut 0), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(a: i32, b: i64) {
            let mut out = Vec::new();
            write_i32(&mut out, a);
            prop_assert_eq!(out.len(), len_i32(a));
            write_i64(&mut out, b);
            prop_assert_eq!(out.len(), len_i32(a) + len_i64(b));
            let mut at = 0;
            prop_assert_eq!(read_i32(&out, &mut at), Some(a));
            prop_assert_eq!(read_i64(&out, &mut at), Some(b));
            prop_assert_eq!(at, out.len());
        }
    }
}
