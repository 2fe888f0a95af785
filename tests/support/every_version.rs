//! Every message of the catalogue in every version, with a generator of values.

use corelane::model::Rng;
use corelane::wire::msg::{self, CATALOGUE};
use corelane::wire::{Malformed, Reader, Writer};

use crate::schema_codec::{Message, Schemas};

/// Random values per message and version. `CORELANE_WIRE_ROUNDS` raises it for a longer search.
pub fn rounds() -> u64 {
    let given = std::env::var("CORELANE_WIRE_ROUNDS").ok();
    given.map_or(12, |rounds| {
        rounds.parse().expect("CORELANE_WIRE_ROUNDS is a number")
    })
}

/// Calls `law` for every message and version: its place in the catalogue, its schema, the version, and a generator of that pair.
pub fn for_every_version(mut law: impl FnMut(usize, &Message, i16, &mut Rng)) {
    let schemas = Schemas::load();
    assert_eq!(schemas.messages.len(), CATALOGUE.len());
    for (index, entry) in CATALOGUE.iter().enumerate() {
        let message = schemas.message(entry.name);
        assert_eq!(
            (message.kind.as_str(), message.versions),
            (entry.kind, entry.versions)
        );
        for version in entry.versions.0..=entry.versions.1 {
            let seed = (index as u64) << 16 | version as u64;
            law(index, message, version, &mut Rng::seeded(seed));
        }
    }
}

/// Decodes and encodes: the bytes, and how many of the given ones were left.
pub fn recode(index: usize, version: i16, bytes: &[u8]) -> Result<(Vec<u8>, usize), Malformed> {
    let (mut r, mut w) = (Reader::new(bytes), Writer::new());
    msg::recode(index, version, &mut r, &mut w)?;
    Ok((w.into_bytes(), r.remaining()))
}
