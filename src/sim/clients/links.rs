//! A client's connections, one to a shard at most, and the requests that wait for their answers.

use std::collections::{BTreeMap, VecDeque};

use super::Ctx;
use crate::model::ConnId;
use crate::sim::net::End;
use crate::sim::trace::sum;
use crate::wire::{ApiKey, Reader, RequestHeader, Writer, read_response_header};

struct Call<T> {
    correlation_id: i32,
    api: ApiKey,
    version: i16,
    tag: T,
}

struct Link<T> {
    conn: ConnId,
    calls: VecDeque<Call<T>>,
    received: Vec<u8>,
    /// The client said that it sends nothing more.
    half_closed: bool,
    /// A request without an answer went over it: the broker says by closing that one failed.
    unanswered: bool,
}

pub(super) struct Links<T> {
    links: BTreeMap<usize, Link<T>>,
    next_correlation_id: i32,
}

/// An answer: the call's tag, and the body in its version.
pub(super) struct Answer<T> {
    pub tag: T,
    pub version: i16,
    bytes: Vec<u8>,
    api: ApiKey,
}

impl<T> Answer<T> {
    /// At the body.
    pub fn reader(&self) -> Reader<'_> {
        let mut r = Reader::new(&self.bytes[4..]);
        read_response_header(&mut r, self.api, self.version).expect("read before");
        r
    }
}

impl<T> Links<T> {
    pub fn new() -> Links<T> {
        Links {
            links: BTreeMap::new(),
            next_correlation_id: 0,
        }
    }

    /// Open connections, for the report of a hang.
    pub fn describe(&self) -> String {
        let link = |(shard, link): (&usize, &Link<T>)| {
            let half = if link.half_closed {
                ", half-closed"
            } else {
                ""
            };
            let (conn, calls) = (link.conn.0, link.calls.len());
            format!("connection {conn} to shard {shard}{half}: {calls} unanswered")
        };
        let all: Vec<String> = self.links.iter().map(link).collect();
        all.join(", ")
    }

    /// Requests on the connection to a shard that have no answer yet.
    pub fn in_flight(&self, shard: usize) -> usize {
        self.links.get(&shard).map_or(0, |link| link.calls.len())
    }

    pub fn in_flight_total(&self) -> usize {
        self.links.values().map(|link| link.calls.len()).sum()
    }

    /// Sends a request, connecting first if need be. False: there is nobody, or the connection takes no more.
    pub fn call(
        &mut self,
        ctx: &mut Ctx<'_>,
        shard: usize,
        api: ApiKey,
        version: i16,
        tag: Option<T>,
        body: impl FnOnce(&mut Writer, i16),
    ) -> bool {
        if shard >= ctx.shards {
            return false;
        }
        let link = self.links.entry(shard).or_insert_with(|| Link {
            conn: ctx.net.connect(ctx.me, shard, ctx.now, ctx.queue),
            calls: VecDeque::new(),
            received: Vec::new(),
            half_closed: false,
            unanswered: false,
        });
        link.unanswered |= tag.is_none();
        if link.half_closed {
            return false;
        }
        self.next_correlation_id += 1;
        let header = RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id: self.next_correlation_id,
            client_id: Some("sim".into()),
        };
        let mut w = Writer::new();
        header.encode(&mut w);
        body(&mut w, version);
        let body = w.into_bytes();
        let mut frame = (body.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&body);
        ctx.trace.event(
            ctx.now,
            "request",
            &[
                ctx.me as u64,
                link.conn.0,
                api.code() as u64,
                version as u64,
                sum(&frame),
            ],
        );
        ctx.net.send(link.conn, frame, ctx.now, ctx.queue);
        if let Some(tag) = tag {
            link.calls.push_back(Call {
                correlation_id: self.next_correlation_id,
                api,
                version,
                tag,
            });
        }
        true
    }

    /// Bytes came; gives the answers that are whole now.
    pub fn bytes(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, bytes: &[u8]) -> Vec<Answer<T>> {
        let mut answers = Vec::new();
        let Some(link) = self.links.values_mut().find(|link| link.conn == conn) else {
            return answers;
        };
        link.received.extend_from_slice(bytes);
        loop {
            let Some(size) = link.received.first_chunk::<4>() else {
                return answers;
            };
            let end = 4 + u32::from_be_bytes(*size) as usize;
            if link.received.len() < end {
                return answers;
            }
            let rest = link.received.split_off(end);
            let bytes = std::mem::replace(&mut link.received, rest);
            let Some(call) = link.calls.pop_front() else {
                ctx.fail("an answer came that nobody asked for".into());
                return answers;
            };
            let mut r = Reader::new(&bytes[4..]);
            match read_response_header(&mut r, call.api, call.version) {
                Ok(id) if id == call.correlation_id => {}
                other => {
                    ctx.fail(format!(
                        "the answer to {:?} {} has the header {other:?} and not {}",
                        call.api, call.version, call.correlation_id
                    ));
                    return answers;
                }
            }
            answers.push(Answer {
                tag: call.tag,
                version: call.version,
                bytes,
                api: call.api,
            });
        }
    }

    /// The connection is gone; gives what was asked on it and is not answered.
    pub fn gone(&mut self, ctx: &mut Ctx<'_>, conn: ConnId) -> Vec<T> {
        let shard = self.links.iter().find(|(_, link)| link.conn == conn);
        let Some((&shard, _)) = shard else {
            return Vec::new();
        };
        let link = self.links.remove(&shard).expect("found above");
        // After a half close the broker answers everything that came; only a crash may keep it from that.
        let must_answer = link.half_closed && !link.unanswered && !ctx.net.was_crashed(conn);
        if must_answer && !link.calls.is_empty() {
            let calls = link.calls.len();
            ctx.fail(format!(
                "a half-closed connection ended with {calls} requests unanswered"
            ));
        }
        link.calls.into_iter().map(|call| call.tag).collect()
    }

    /// Ends one connection, whichever; gives what was asked on it and is not answered.
    pub fn cut(&mut self, ctx: &mut Ctx<'_>) -> Vec<T> {
        let open: Vec<usize> = self.links.keys().copied().collect();
        if open.is_empty() {
            return Vec::new();
        }
        let shard = open[ctx.rng.below(open.len() as u64) as usize];
        let how = match ctx.rng.below(3) {
            0 => End::Closed,
            1 => End::Broken,
            _ => End::Half,
        };
        let link = self.links.get_mut(&shard).expect("listed above");
        if link.half_closed {
            return Vec::new();
        }
        ctx.trace
            .event(ctx.now, "cut", &[ctx.me as u64, link.conn.0, how as u64]);
        ctx.net.end(link.conn, how, ctx.now, ctx.queue);
        if how == End::Half {
            link.half_closed = true;
            return Vec::new();
        }
        let link = self.links.remove(&shard).expect("listed above");
        link.calls.into_iter().map(|call| call.tag).collect()
    }
}
