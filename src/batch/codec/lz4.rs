//! LZ4 frames, version 1, with independent blocks: what Kafka's Java reader takes. Linked blocks are refused, as it would.
//! Checksums of blocks and of the content are verified where present (the Java reader passes over the latter, others do not).

use twox_hash::XxHash32;

use super::CodecError;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Version 1, independent blocks, blocks of 64 KiB, and the checksum of these two bytes: the header that Kafka writes.
const HEADER: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
const BLOCK_BYTES: usize = 64 * 1024;

/// Set in a block's length: the block is stored as it is.
const STORED: u32 = 0x8000_0000;

#[derive(Default)]
pub struct Lz4 {
    frame: Option<Frame>,
    ended: bool,
    /// A block that did not fit what the caller had left, and how much of it was given.
    block: Vec<u8>,
    given: usize,
}

struct Frame {
    block_bytes_max: usize,
    block_checksums: bool,
    content: Option<XxHash32>,
    content_bytes: Option<u64>,
    given: u64,
}

const CUT_OFF: CodecError = CodecError::Garbage("lz4 data is cut off");

impl Lz4 {
    pub fn start(&mut self) {
        self.frame = None;
        self.ended = false;
        self.block.clear();
        self.given = 0;
    }

    pub fn read(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        loop {
            if self.given < self.block.len() {
                let n = out.len().min(self.block.len() - self.given);
                out[..n].copy_from_slice(&self.block[self.given..self.given + n]);
                self.given += n;
                return Ok(n);
            }
            if self.ended {
                return Ok(0);
            }
            let frame = match &mut self.frame {
                Some(frame) => frame,
                none => none.insert(Frame::read(input)?),
            };
            let size = take_u32(input)?;
            if size == 0 {
                frame.end(input)?;
                self.ended = true;
                if self.block.capacity() > super::WINDOW_KEPT_BYTES_MAX {
                    self.block = Vec::new();
                }
                continue;
            }
            let direct = out.len() >= frame.block_bytes_max;
            let target = if direct {
                &mut out[..frame.block_bytes_max]
            } else {
                self.block.resize(frame.block_bytes_max, 0);
                &mut self.block[..]
            };
            let n = frame.block(size, input, target)?;
            if !direct {
                self.block.truncate(n);
                self.given = 0;
            } else if n > 0 {
                return Ok(n);
            }
        }
    }

    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&HEADER);
        for block in input.chunks(BLOCK_BYTES) {
            let at = out.len();
            out.resize(
                at + 4 + lz4_flex::block::get_maximum_output_size(block.len()),
                0,
            );
            let len = lz4_flex::block::compress_into(block, &mut out[at + 4..])
                .expect("the output has room for the worst case");
            let size = if len < block.len() {
                out.truncate(at + 4 + len);
                len as u32
            } else {
                out.truncate(at + 4);
                out.extend_from_slice(block);
                block.len() as u32 | STORED
            };
            out[at..at + 4].copy_from_slice(&size.to_le_bytes());
        }
        out.extend_from_slice(&[0; 4]);
    }
}

impl Frame {
    /// `[magic 4][flags 1][block descriptor 1][content size 8, if flagged][header checksum 1]`.
    fn read(input: &mut &[u8]) -> Result<Frame, CodecError> {
        let bytes = *input;
        if bytes.get(..4) != Some(&MAGIC) {
            return Err(CodecError::Garbage("no lz4 frame"));
        }
        let [flags, descriptor] = *bytes
            .get(4..6)
            .and_then(|b| b.first_chunk::<2>())
            .ok_or(CUT_OFF)?;
        if flags >> 6 != 1 || flags & 0x03 != 0 || descriptor & 0x8f != 0 {
            return Err(CodecError::Garbage("an unknown kind of lz4 frame"));
        }
        if flags & 0x20 == 0 {
            return Err(CodecError::Garbage(
                "lz4 blocks that depend on each other are not supported",
            ));
        }
        let block_bytes_max = match descriptor >> 4 & 7 {
            4 => 64 * 1024,
            5 => 256 * 1024,
            6 => 1024 * 1024,
            7 => 4 * 1024 * 1024,
            _ => return Err(CodecError::Garbage("an unknown lz4 block size")),
        };
        let mut at = 6;
        let mut content_bytes = None;
        if flags & 0x08 != 0 {
            let size = bytes.get(at..).and_then(|b| b.first_chunk::<8>());
            content_bytes = Some(u64::from_le_bytes(*size.ok_or(CUT_OFF)?));
            at += 8;
        }
        let checksum = *bytes.get(at).ok_or(CUT_OFF)?;
        if checksum != (XxHash32::oneshot(0, &bytes[4..at]) >> 8) as u8 {
            return Err(CodecError::Garbage(
                "the lz4 header does not match its checksum",
            ));
        }
        *input = &bytes[at + 1..];
        Ok(Frame {
            block_bytes_max,
            block_checksums: flags & 0x10 != 0,
            content: (flags & 0x04 != 0).then(|| XxHash32::with_seed(0)),
            content_bytes,
            given: 0,
        })
    }

    /// Decodes one block of `size` into `target` (as large as a block can be); gives its length.
    fn block(
        &mut self,
        size: u32,
        input: &mut &[u8],
        target: &mut [u8],
    ) -> Result<usize, CodecError> {
        let len = (size & !STORED) as usize;
        if len > self.block_bytes_max {
            return Err(CodecError::Garbage("an lz4 block is larger than declared"));
        }
        let data = input.get(..len).ok_or(CUT_OFF)?;
        *input = &input[len..];
        if self.block_checksums && take_u32(input)? != XxHash32::oneshot(0, data) {
            return Err(CodecError::Garbage(
                "an lz4 block does not match its checksum",
            ));
        }
        let n = if size & STORED != 0 {
            target[..len].copy_from_slice(data);
            len
        } else {
            lz4_flex::block::decompress_into(data, target)
                .map_err(|_| CodecError::Garbage("broken lz4 data"))?
        };
        if let Some(hash) = &mut self.content {
            std::hash::Hasher::write(hash, &target[..n]);
        }
        self.given += n as u64;
        Ok(n)
    }

    fn end(&mut self, input: &mut &[u8]) -> Result<(), CodecError> {
        if let Some(hash) = &self.content
            && take_u32(input)? != hash.finish_32()
        {
            return Err(CodecError::Garbage("lz4 data does not match its checksum"));
        }
        if self.content_bytes.is_some_and(|bytes| bytes != self.given) {
            return Err(CodecError::Garbage("lz4 data is not of its declared size"));
        }
        if !input.is_empty() {
            return Err(CodecError::Garbage("bytes after the lz4 frame"));
        }
        Ok(())
    }
}

fn take_u32(input: &mut &[u8]) -> Result<u32, CodecError> {
    let (bytes, rest) = input.split_first_chunk::<4>().ok_or(CUT_OFF)?;
    *input = rest;
    Ok(u32::from_le_bytes(*bytes))
}
