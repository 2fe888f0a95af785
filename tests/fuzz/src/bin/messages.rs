//! Decoding of every message in every version, and of whole request frames behind their header.
//!
//! Input: `[kind 1][index 2][version 1][bytes ...]`. An odd kind takes the bytes as a frame: header, then the request that it names.
//! Otherwise index and version choose a message of the catalogue. Law: nothing panics, and what was decoded encodes to bytes that
//! decode and encode to themselves.
#![no_main]

use corelane::wire::msg::{self, CATALOGUE};
use corelane::wire::{Reader, RequestHeader, Writer, frame_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, high, low, version], bytes)) = input.split_first_chunk::<4>() else {
        return;
    };
    let _ = frame_bytes([kind, high, low, version]);
    let mut r = Reader::new(bytes);
    if kind & 1 == 1 {
        let Ok(header) = RequestHeader::decode(&mut r) else {
            return;
        };
        let is_named = |entry: &msg::Entry| entry.kind == "request" && entry.api == header.api_key;
        if let Some(index) = CATALOGUE.iter().position(is_named) {
            recode(index, header.api_version, &mut r);
        }
        return;
    }
    let index = usize::from(u16::from_be_bytes([high, low])) % CATALOGUE.len();
    let (min, max) = CATALOGUE[index].versions;
    recode(index, min + i16::from(version) % (max - min + 1), &mut r);
});

fn recode(index: usize, version: i16, r: &mut Reader<'_>) {
    let mut w = Writer::new();
    if msg::recode(index, version, r, &mut w).is_err() {
        return;
    }
    let bytes = w.into_bytes();
    let (mut r, mut w) = (Reader::new(&bytes), Writer::new());
    msg::recode(index, version, &mut r, &mut w).expect("our own encoding decodes");
    assert_eq!(
        (r.remaining(), w.as_bytes()),
        (0, &bytes[..]),
        "{} v{version}",
        CATALOGUE[index].name
    );
}
