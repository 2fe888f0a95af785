//! Snappy in the framing of the Java library xerial, which Kafka's format is: a header, then blocks of big-endian length and raw snappy.
//! Some clients send one raw block without the framing; both are read, the framing is written.

use super::CodecError;

const MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
const HEADER_BYTES: usize = 16;

/// Version 1, readable from version 1 on.
const VERSIONS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];

/// What xerial puts into a block.
const BLOCK_BYTES: usize = 32 * 1024;

/// A copy of 64 bytes takes three bytes: nothing real expands more than this, so a larger claim reserves nothing.
const EXPANSION_MAX: usize = 22;

#[derive(Default)]
pub struct Snappy {
    framed: bool,
    /// A block that did not fit what the caller had left, and how much of it was given.
    block: Vec<u8>,
    given: usize,
    any: bool,
}

impl Snappy {
    pub fn start(&mut self, input: &[u8]) {
        self.framed = input.starts_with(&MAGIC);
        self.any = false;
        self.block.clear();
        self.given = 0;
    }

    pub fn read(
        &mut self,
        input: &mut &[u8],
        out: &mut [u8],
        bytes_left: usize,
    ) -> Result<usize, CodecError> {
        loop {
            if self.given < self.block.len() {
                let n = out.len().min(self.block.len() - self.given);
                out[..n].copy_from_slice(&self.block[self.given..self.given + n]);
                self.given += n;
                return Ok(n);
            }
            let Some(block) = self.next_block(input)? else {
                if self.block.capacity() > super::WINDOW_KEPT_BYTES_MAX {
                    self.block = Vec::new();
                }
                return Ok(0);
            };
            let len = snap::raw::decompress_len(block)
                .map_err(|_| CodecError::Garbage("no snappy block"))?;
            if len > bytes_left {
                return Err(CodecError::TooLarge);
            }
            if len > block.len().saturating_mul(EXPANSION_MAX) {
                return Err(CodecError::Garbage("broken snappy data"));
            }
            let target = if len <= out.len() {
                &mut out[..len]
            } else {
                self.block.resize(len, 0);
                self.given = 0;
                &mut self.block[..]
            };
            let n = snap::raw::Decoder::new()
                .decompress(block, target)
                .map_err(|_| CodecError::Garbage("broken snappy data"))?;
            if len <= out.len() && n > 0 {
                return Ok(n);
            }
        }
    }

    fn next_block<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, CodecError> {
        let first = !std::mem::replace(&mut self.any, true);
        if !self.framed {
            // One raw block; an empty payload is not even that.
            return Ok(first.then(|| std::mem::take(input)));
        }
        if first {
            let header = input
                .get(..HEADER_BYTES)
                .ok_or(CodecError::Garbage("the snappy header is cut off"))?;
            // The second word is the lowest version that can read this.
            if header[12..16] != VERSIONS[4..] {
                return Err(CodecError::Garbage("an unknown snappy framing"));
            }
            *input = &input[HEADER_BYTES..];
        }
        if input.is_empty() {
            return Ok(None);
        }
        let cut_off = CodecError::Garbage("snappy data is cut off");
        let (len, rest) = input.split_first_chunk::<4>().ok_or(cut_off)?;
        let len = usize::try_from(i32::from_be_bytes(*len)).map_err(|_| cut_off)?;
        let block = rest.get(..len).ok_or(cut_off)?;
        *input = &rest[len..];
        Ok(Some(block))
    }

    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSIONS);
        let mut encoder = snap::raw::Encoder::new();
        for block in input.chunks(BLOCK_BYTES) {
            let at = out.len();
            out.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
            let len = encoder
                .compress(block, &mut out[at + 4..])
                .expect("the output has room for the worst case");
            out[at..at + 4].copy_from_slice(&(len as u32).to_be_bytes());
            out.truncate(at + 4 + len);
        }
    }
}
