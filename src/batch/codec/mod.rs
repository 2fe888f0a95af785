//! The four codecs, each in Kafka's framing, with contexts that are kept and with bounded output.
//!
//! What is accepted is what *every* usual consumer can read: no stored batch may be unreadable. So bytes after the end of
//! a stream, linked lz4 blocks and wrong trailers are refused although some readers pass over them.

mod gzip;
mod lz4;
mod snappy;
mod zstd;

use super::check::BatchError;
use super::walk::Walk;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    #[default]
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

impl Codec {
    /// By the number in a batch's attributes, which Kafka uses elsewhere too.
    pub fn of(code: i16) -> Option<Codec> {
        Some(match code {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            4 => Codec::Zstd,
            _ => return None,
        })
    }

    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    pub fn from_name(name: &str) -> Option<Codec> {
        [
            Codec::None,
            Codec::Gzip,
            Codec::Snappy,
            Codec::Lz4,
            Codec::Zstd,
        ]
        .into_iter()
        .find(|codec| codec.name() == name)
    }
}

/// A codec with its level, in the codec's own scale. gzip -1 (its default) or 1 to 9, zstd -131072 to 22; snappy has no
/// levels, and lz4's are accepted and make no difference: the encoder has one speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compression {
    pub codec: Codec,
    pub level: i32,
}

impl Compression {
    /// Kafka's default levels.
    pub fn of(codec: Codec) -> Compression {
        let level = match codec {
            Codec::None | Codec::Snappy => 0,
            Codec::Gzip => -1,
            Codec::Lz4 => 9,
            Codec::Zstd => 3,
        };
        Compression { codec, level }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodecError {
    Garbage(&'static str),
    /// The output would pass the bound.
    TooLarge,
}

impl From<CodecError> for BatchError {
    fn from(error: CodecError) -> BatchError {
        match error {
            CodecError::Garbage(reason) => BatchError::invalid(reason),
            CodecError::TooLarge => {
                BatchError::invalid("the records decompress to more than the limit")
            }
        }
    }
}

/// Window over which compressed records are walked: small enough to stay in the second-level cache.
const WINDOW_BYTES: usize = 128 * 1024;

/// A window that grew for a large record is given back above this size.
const WINDOW_KEPT_BYTES_MAX: usize = 1024 * 1024;

/// The contexts of all codecs, made when first used and reused: they carry memory from one use to the next, nothing else. A shard has one.
#[derive(Default)]
pub struct Codecs {
    gzip: gzip::Gzip,
    snappy: snappy::Snappy,
    lz4: lz4::Lz4,
    zstd: zstd::Zstd,
    window: Vec<u8>,
}

impl std::fmt::Debug for Codecs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Codecs")
    }
}

/// A compressed payload being read: the context of its codec and what is left of the input and of the bound.
struct Stream<'c, 'a> {
    reader: Reader<'c>,
    input: &'a [u8],
    bytes_left: usize,
}

enum Reader<'c> {
    Gzip(&'c mut gzip::Gzip),
    Snappy(&'c mut snappy::Snappy),
    Lz4(&'c mut lz4::Lz4),
    Zstd(&'c mut zstd::Zstd),
}

impl Stream<'_, '_> {
    /// Fills the start of `out` (not empty); 0 is the end of the stream, which then was whole.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, CodecError> {
        let input = &mut self.input;
        let n = match &mut self.reader {
            Reader::Gzip(reader) => reader.read(input, out),
            Reader::Snappy(reader) => reader.read(input, out, self.bytes_left),
            Reader::Lz4(reader) => reader.read(input, out),
            Reader::Zstd(reader) => reader.read(input, out),
        }?;
        self.bytes_left = self.bytes_left.checked_sub(n).ok_or(CodecError::TooLarge)?;
        Ok(n)
    }
}

impl Codecs {
    /// `bytes_max` bounds the decompressed bytes. The reader is left as it was for `Codec::None`, which has no stream.
    fn open<'c, 'a>(
        gzip: &'c mut gzip::Gzip,
        snappy: &'c mut snappy::Snappy,
        lz4: &'c mut lz4::Lz4,
        zstd: &'c mut zstd::Zstd,
        codec: Codec,
        input: &'a [u8],
        bytes_max: usize,
    ) -> Stream<'c, 'a> {
        let reader = match codec {
            Codec::None => unreachable!("uncompressed records are read where they are"),
            Codec::Gzip => {
                gzip.start();
                Reader::Gzip(gzip)
            }
            Codec::Snappy => {
                snappy.start(input);
                Reader::Snappy(snappy)
            }
            Codec::Lz4 => {
                lz4.start();
                Reader::Lz4(lz4)
            }
            Codec::Zstd => {
                zstd.start();
                Reader::Zstd(zstd)
            }
        };
        Stream {
            reader,
            input,
            bytes_left: bytes_max,
        }
    }

    /// Appends the decompressed `input` to `out`.
    pub fn decompress(
        &mut self,
        codec: Codec,
        input: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        let Codecs {
            gzip,
            snappy,
            lz4,
            zstd,
            ..
        } = self;
        let mut stream = Codecs::open(gzip, snappy, lz4, zstd, codec, input, bytes_max);
        // Grown as data really comes: what a header claims reserves nothing.
        let mut grow = (input.len() * 4).clamp(4 * 1024, WINDOW_KEPT_BYTES_MAX);
        let mut filled = out.len();
        let result = loop {
            if out.len() - filled < grow / 4 {
                out.resize(filled + grow, 0);
                grow = (grow * 2).min(16 * 1024 * 1024);
            }
            match stream.read(&mut out[filled..]) {
                Ok(0) => break Ok(()),
                Ok(n) => filled += n,
                Err(error) => break Err(error),
            }
        };
        out.truncate(filled);
        zstd.done();
        result
    }

    /// Walks the records of a compressed `input` window by window, in bounded memory.
    pub fn walk(
        &mut self,
        codec: Codec,
        input: &[u8],
        bytes_max: usize,
        walk: &mut Walk,
    ) -> Result<(), BatchError> {
        let Codecs {
            gzip,
            snappy,
            lz4,
            zstd,
            window,
        } = self;
        if window.len() < WINDOW_BYTES {
            window.resize(WINDOW_BYTES, 0);
        }
        let mut stream = Codecs::open(gzip, snappy, lz4, zstd, codec, input, bytes_max);
        let result = walk_stream(&mut stream, window, walk);
        zstd.done();
        if window.len() > WINDOW_KEPT_BYTES_MAX {
            *window = Vec::new();
        }
        walk.finish(result?)
    }

    /// Appends the compressed `input` to `out`.
    pub fn compress(&mut self, compression: Compression, input: &[u8], out: &mut Vec<u8>) {
        match compression.codec {
            Codec::None => out.extend_from_slice(input),
            Codec::Gzip => self.gzip.compress(compression.level, input, out),
            Codec::Snappy => self.snappy.compress(input, out),
            Codec::Lz4 => self.lz4.compress(input, out),
            Codec::Zstd => self.zstd.compress(compression.level, input, out),
        }
    }
}

/// Gives the bytes that are left over after the last record.
fn walk_stream(
    stream: &mut Stream<'_, '_>,
    window: &mut Vec<u8>,
    walk: &mut Walk,
) -> Result<usize, BatchError> {
    let mut filled = 0;
    loop {
        if filled == window.len() {
            // One record fills the window: let it grow with what comes. The stream's bound bounds it.
            window.resize(window.len() * 2, 0);
        }
        let n = stream.read(&mut window[filled..])?;
        if n == 0 {
            return Ok(filled);
        }
        filled += n;
        let taken = walk
            .feed(&window[..filled], u32::MAX)
            .map_err(BatchError::invalid)?;
        if walk.is_complete() && taken < filled {
            return Ok(filled - taken);
        }
        window.copy_within(taken..filled, 0);
        filled -= taken;
    }
}
