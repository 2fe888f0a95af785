//! Writes a first corpus: random valid messages of every kind and version, and request frames, in the form `messages` takes.

use std::path::PathBuf;

#[path = "../../../support/schema_codec.rs"]
mod schema_codec;

use corelane::model::Rng;
use corelane::wire::msg::CATALOGUE;
use schema_codec::Schemas;

fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).expect("the folder of the corpus"));
    std::fs::create_dir_all(&dir).expect("making the folder");
    let (schemas, mut rng) = (Schemas::load(), Rng::seeded(1));
    for (index, entry) in CATALOGUE.iter().enumerate() {
        let message = schemas.message(entry.name);
        for version in entry.versions.0..=entry.versions.1 {
            let body = message.encode(version, &message.arbitrary(version, &mut rng));
            let [high, low] = (index as u16).to_be_bytes();
            let mut input = vec![0, high, low, (version - entry.versions.0) as u8];
            input.extend_from_slice(&body);
            let path = dir.join(format!("{}-{version}", entry.name));
            std::fs::write(path, input).expect("writing a seed");
            if entry.kind == "request" {
                let frame = schemas.request_frame(entry.api, version, 1, &body);
                let input = [&[1, 0, 0, 0], &frame[4..]].concat();
                let path = dir.join(format!("frame-{}-{version}", entry.name));
                std::fs::write(path, input).expect("writing a seed");
            }
        }
    }
}
