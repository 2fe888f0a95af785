//! What happened, in order: folded into a hash, and printed when asked for.

use crate::model::Instant;

pub(super) struct Trace {
    hash: u64,
    events: u64,
    print: bool,
}

impl Trace {
    pub fn new(seed: u64, print: bool) -> Trace {
        let mut trace = Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            print,
        };
        trace.fold(seed);
        trace
    }

    /// Something happened; the numbers say what exactly.
    pub fn event(&mut self, now: Instant, what: &'static str, numbers: &[u64]) {
        self.events += 1;
        self.fold(now.0);
        self.fold(what.len() as u64 ^ u64::from(crc32c::crc32c(what.as_bytes())) << 8);
        for number in numbers {
            self.fold(*number);
        }
        if self.print {
            println!("{:>12} {what} {numbers:?}", now.0);
        }
    }

    /// Words for a reader; no part of the hash.
    pub fn say(&self, now: Instant, text: impl FnOnce() -> String) {
        if self.print {
            println!("{:>12} {}", now.0, text());
        }
    }

    fn fold(&mut self, number: u64) {
        self.hash = (self.hash ^ number)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn events(&self) -> u64 {
        self.events
    }
}

/// Bytes as a number for the trace.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    u64::from(crc32c::crc32c(bytes)) | (bytes.len() as u64) << 32
}
