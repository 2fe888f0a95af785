//! Writes every message in every version, its defaults and random values, as our codec has it: a line each, for Apache Kafka's own classes to
//! read (`Messages.java`; `tests/messages.py` runs both). `cargo run --example judged_messages -- FILE`

#[path = "../support/every_version.rs"]
mod every_version;
#[path = "../support/schema_codec.rs"]
mod schema_codec;

use corelane::wire::{Writer, msg};
use every_version::{for_every_version, recode, rounds};

fn main() {
    let path = std::env::args_os().nth(1).expect("the file to write");
    let mut text = String::new();
    for_every_version(|index, message, version, rng| {
        let mut line = |what: &str, bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("{} {version} {what} {hex}\n", message.name));
        };
        let mut w = Writer::new();
        msg::encode_default(index, version, &mut w);
        line("default", w.as_bytes());
        for _ in 0..rounds() {
            let bytes = message.encode(version, &message.arbitrary(version, rng));
            let (again, _) = recode(index, version, &bytes).expect("a valid message");
            line("value", &again);
        }
    });
    std::fs::write(path, text).expect("writing the messages");
}
