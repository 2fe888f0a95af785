//! Clients that speak wire bytes and check every answer.

mod admin;
mod consumer;
mod links;
mod prober;
mod producer;
mod vandal;
mod view;

use std::collections::BTreeMap;

pub(super) use admin::Admin;
pub(super) use consumer::Consumer;
pub(super) use prober::Prober;
pub(super) use producer::Producer;
pub(super) use vandal::Vandal;

use super::net::Net;
use super::oracle::Oracle;
use super::queue::Queue;
use super::trace::Trace;
use crate::batch::Codecs;
use crate::model::{ConnId, Instant, Rng};

/// Node ids of the process in the simulator start here.
pub(super) const PROCESS: i32 = 1;

/// What a client may use of the world.
pub(super) struct Ctx<'a> {
    pub me: usize,
    pub now: Instant,
    pub rng: &'a mut Rng,
    pub net: &'a mut Net,
    pub queue: &'a mut Queue,
    pub oracle: &'a mut Oracle,
    pub trace: &'a mut Trace,
    pub codecs: &'a mut Codecs,
    /// Shards that take connections; 0 while the process is down.
    pub shards: usize,
    /// No more faults come and no more batches are made.
    pub calm: bool,
    pub wake_at: &'a mut Option<Instant>,
    /// Acknowledgements that reached clients.
    pub acks: &'a mut u64,
}

impl Ctx<'_> {
    /// Asks to be woken in so many microseconds, or before.
    pub fn wake_in(&mut self, us: u64) {
        let at = self.now.after_us(us.max(1));
        *self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    pub fn fail(&mut self, why: String) {
        self.oracle.fail(format!("client {}: {why}", self.me));
    }
}

#[derive(Debug)]
pub(super) enum Input {
    Wake,
    Bytes(ConnId, Vec<u8>),
    Gone(ConnId),
}

pub(super) enum Client {
    Admin(Admin),
    Producer(Producer),
    Consumer(Consumer),
    Prober(Prober),
    Vandal(Vandal),
}

impl Client {
    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match self {
            Client::Admin(client) => client.on(input, ctx),
            Client::Producer(client) => client.on(input, ctx),
            Client::Consumer(client) => client.on(input, ctx),
            Client::Prober(client) => client.on(input, ctx),
            Client::Vandal(client) => client.on(input, ctx),
        }
    }

    /// Nothing is left to do and nothing is unanswered.
    pub fn is_done(&self) -> bool {
        match self {
            Client::Admin(client) => client.is_done(),
            Client::Producer(client) => client.is_done(),
            Client::Consumer(client) => client.is_done(),
            Client::Prober(client) => client.is_done(),
            Client::Vandal(client) => client.is_done(),
        }
    }

    /// What it waits for, for the report of a hang.
    pub fn waits_for(&self) -> String {
        match self {
            Client::Admin(client) => client.waits_for(),
            Client::Producer(client) => client.waits_for(),
            Client::Consumer(client) => client.waits_for(),
            Client::Prober(client) => client.waits_for(),
            Client::Vandal(client) => client.waits_for(),
        }
    }
}

/// Values by partition number of a topic named by index.
type ByPart<T> = BTreeMap<(usize, i32), T>;
