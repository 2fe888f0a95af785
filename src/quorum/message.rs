//! What voters say to each other, in bytes of our own: the crate's encoding would make its message types a format.
//!
//! ```text
//! kind u8 | to, from, term, log term, index, commit, commit term, reject hint u64 | reject u8 | entries u32 | entries
//! ```

use super::wal::{Cursor, Entry, length};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Append,
    AppendResponse,
    RequestVote,
    RequestVoteResponse,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
    RequestPreVote,
    RequestPreVoteResponse,
}

impl Kind {
    /// By their number on the wire.
    pub const ALL: [Kind; 9] = [
        Kind::Append,
        Kind::AppendResponse,
        Kind::RequestVote,
        Kind::RequestVoteResponse,
        Kind::Heartbeat,
        Kind::HeartbeatResponse,
        Kind::TimeoutNow,
        Kind::RequestPreVote,
        Kind::RequestPreVoteResponse,
    ];
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub kind: Kind,
    pub to: u64,
    pub from: u64,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub commit: u64,
    pub commit_term: u64,
    pub reject: bool,
    pub reject_hint: u64,
    pub entries: Vec<Entry>,
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.kind as u8];
        for number in [
            self.to,
            self.from,
            self.term,
            self.log_term,
            self.index,
            self.commit,
            self.commit_term,
            self.reject_hint,
        ] {
            out.extend(number.to_be_bytes());
        }
        out.push(u8::from(self.reject));
        out.extend(length(self.entries.len()));
        for entry in &self.entries {
            entry.encode(&mut out);
        }
        out
    }

    /// `None` for anything but exactly one message.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let mut r = Cursor(bytes);
        let kind = *Kind::ALL.get(usize::from(r.u8()?))?;
        let mut message = Message {
            kind,
            to: r.u64()?,
            from: r.u64()?,
            term: r.u64()?,
            log_term: r.u64()?,
            index: r.u64()?,
            commit: r.u64()?,
            commit_term: r.u64()?,
            reject_hint: r.u64()?,
            reject: r.u8()? != 0,
            entries: Vec::new(),
        };
        for _ in 0..r.u32()? {
            message.entries.push(Entry::decode(&mut r)?);
        }
        r.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wal::EntryKind;
    use super::*;

    #[test]
    fn a_message_comes_back_and_a_cut_one_does_not() {
        for kind in Kind::ALL {
            let message = Message {
                kind,
                to: 1,
                from: 2,
                term: 3,
                log_term: 4,
                index: 5,
                commit: 6,
                commit_term: 7,
                reject: true,
                reject_hint: 8,
                entries: vec![Entry {
                    index: 6,
                    term: 4,
                    kind: EntryKind::Normal,
                    data: vec![9; 3],
                }],
            };
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            for cut in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..cut]), None);
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::decode(&longer), None);
        }
        assert_eq!(Message::decode(&[9; 80]), None, "no such kind");
    }
}
