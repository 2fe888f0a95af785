//! Zstandard frames over kept contexts.

use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, compress_bound,
};

use super::CodecError;

/// Windows of up to 128 MiB, what every level can make and the usual readers take by default.
const WINDOW_LOG_MAX: u32 = 27;

/// A context whose window grew above this is given back.
const CONTEXT_KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Default)]
pub struct Zstd {
    decoder: Option<DCtx<'static>>,
    encoder: Option<CCtx<'static>>,
    /// A frame was begun and is not at its end.
    inside: bool,
}

impl Zstd {
    pub fn start(&mut self) {
        self.inside = true;
        if let Some(decoder) = &mut self.decoder {
            let _ = decoder.reset(ResetDirective::SessionOnly);
        }
    }

    /// After the last read.
    pub fn done(&mut self) {
        if self
            .decoder
            .as_ref()
            .is_some_and(|d| d.sizeof() > CONTEXT_KEPT_BYTES_MAX)
        {
            self.decoder = None;
        }
    }

    pub fn read(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let decoder = self.decoder.get_or_insert_with(|| {
            let mut decoder = DCtx::create();
            decoder
                .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
                .expect("a window that zstd allows");
            decoder
        });
        loop {
            if input.is_empty() && !self.inside {
                return Ok(0);
            }
            let mut from = InBuffer::around(input);
            let mut to = OutBuffer::around(&mut *out);
            let hint = decoder
                .decompress_stream(&mut to, &mut from)
                .map_err(|_| CodecError::Garbage("broken zstd data"))?;
            let (taken, given) = (from.pos(), to.pos());
            *input = &input[taken..];
            self.inside = hint != 0;
            if given > 0 {
                return Ok(given);
            }
            if taken == 0 && self.inside {
                return Err(CodecError::Garbage("zstd data is cut off"));
            }
        }
    }

    pub fn compress(&mut self, level: i32, input: &[u8], out: &mut Vec<u8>) {
        let encoder = self.encoder.get_or_insert_with(CCtx::create);
        encoder
            .set_parameter(CParameter::CompressionLevel(level))
            .expect("zstd clamps levels");
        let at = out.len();
        out.resize(at + compress_bound(input.len()), 0);
        let len = encoder
            .compress2(&mut out[at..], input)
            .expect("the output has room for the worst case");
        out.truncate(at + len);
    }
}
