//! RFC 1952 over a kept raw-deflate context. Several members one after the other are one stream, as every gunzip reads them.

use flate2::{Compress, Crc, Decompress, FlushCompress, FlushDecompress, Status};

use super::CodecError;

pub struct Gzip {
    inflate: Option<Decompress>,
    deflate: Option<(i32, Compress)>,
    crc: Crc,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a member; the first must be there.
    Member {
        first: bool,
    },
    Body,
}

const FHCRC: u8 = 2;
const FEXTRA: u8 = 4;
const FNAME: u8 = 8;
const FCOMMENT: u8 = 16;

impl Default for Gzip {
    fn default() -> Gzip {
        Gzip {
            inflate: None,
            deflate: None,
            crc: Crc::new(),
            state: State::Member { first: true },
        }
    }
}

impl Gzip {
    pub fn start(&mut self) {
        self.state = State::Member { first: true };
    }

    pub fn read(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let inflate = self.inflate.get_or_insert_with(|| Decompress::new(false));
        loop {
            if let State::Member { first } = self.state {
                if input.is_empty() && !first {
                    return Ok(0);
                }
                *input = after_header(input).ok_or(CodecError::Garbage("no gzip header"))?;
                inflate.reset(false);
                self.crc.reset();
                self.state = State::Body;
            }
            let (in_before, out_before) = (inflate.total_in(), inflate.total_out());
            let status = inflate
                .decompress(input, out, FlushDecompress::None)
                .map_err(|_| CodecError::Garbage("broken gzip data"))?;
            let taken = (inflate.total_in() - in_before) as usize;
            let given = (inflate.total_out() - out_before) as usize;
            *input = &input[taken..];
            self.crc.update(&out[..given]);
            if status == Status::StreamEnd {
                self.state = end_member(&self.crc, input)?;
            } else if taken == 0 && given == 0 {
                return Err(CodecError::Garbage("gzip data is cut off"));
            }
            if given > 0 {
                return Ok(given);
            }
        }
    }

    pub fn compress(&mut self, level: i32, input: &[u8], out: &mut Vec<u8>) {
        let deflate = match &mut self.deflate {
            Some((l, deflate)) if *l == level => {
                deflate.reset();
                deflate
            }
            other => {
                let flate_level = match level {
                    0..=9 => flate2::Compression::new(level as u32),
                    _ => flate2::Compression::default(),
                };
                &mut other.insert((level, Compress::new(flate_level, false))).1
            }
        };
        // No name, no time, unknown system.
        out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
        let mut rest = input;
        loop {
            if out.capacity() - out.len() < 64 {
                out.reserve((rest.len() / 2).max(4096));
            }
            let before = deflate.total_in();
            let status = deflate
                .compress_vec(rest, out, FlushCompress::Finish)
                .expect("deflate into memory cannot fail");
            rest = &rest[(deflate.total_in() - before) as usize..];
            if status == Status::StreamEnd {
                break;
            }
        }
        let mut crc = Crc::new();
        crc.update(input);
        out.extend_from_slice(&crc.sum().to_le_bytes());
        out.extend_from_slice(&crc.amount().to_le_bytes());
    }
}

fn after_header(input: &[u8]) -> Option<&[u8]> {
    let (head, mut rest) = input.split_first_chunk::<10>()?;
    let [0x1f, 0x8b, 8, flags, ..] = *head else {
        return None;
    };
    if flags & 0xe0 != 0 {
        return None;
    }
    if flags & FEXTRA != 0 {
        let (len, after) = rest.split_first_chunk::<2>()?;
        rest = after.get(usize::from(u16::from_le_bytes(*len))..)?;
    }
    for flag in [FNAME, FCOMMENT] {
        if flags & flag != 0 {
            let end = rest.iter().position(|b| *b == 0)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & FHCRC != 0 {
        rest = rest.get(2..)?;
    }
    Some(rest)
}

/// Checks the trailer; gives the state after it.
fn end_member(crc: &Crc, input: &mut &[u8]) -> Result<State, CodecError> {
    let (trailer, rest) = input
        .split_first_chunk::<8>()
        .ok_or(CodecError::Garbage("gzip data is cut off"))?;
    let sum = u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
    let len = u32::from_le_bytes([trailer[4], trailer[5], trailer[6], trailer[7]]);
    if sum != crc.sum() || len != crc.amount() {
        return Err(CodecError::Garbage("gzip data does not match its trailer"));
    }
    *input = rest;
    Ok(State::Member { first: false })
}
