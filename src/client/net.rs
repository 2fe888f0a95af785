//! The shell of the client: std::net sockets, non-blocking, waited for with poll(2).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::cluster::{Cluster, Out, Target};
use crate::model::{Instant, limit};

/// The sockets of one [`Cluster`], and the clock.
pub struct Net {
    start: std::time::Instant,
    sockets: BTreeMap<Target, Socket>,
}

struct Socket {
    stream: TcpStream,
    /// Bytes to send from `sent` on.
    out: Vec<u8>,
    sent: usize,
    input: BytesMut,
}

/// Unsent bytes above which [`Net::drive`] does not come back before some are gone: with acks=0 nothing else slows a producer.
const UNSENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Room made for a receive.
const RECV_BYTES: usize = 256 * 1024;

impl Default for Net {
    fn default() -> Net {
        Net::new()
    }
}

impl Net {
    pub fn new() -> Net {
        Net {
            start: std::time::Instant::now(),
            sockets: BTreeMap::new(),
        }
    }

    pub fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_micros() as u64)
    }

    /// Carries out what the cluster wants, then waits until something comes, at most until `until`.
    pub fn drive<T>(&mut self, cluster: &mut Cluster<T>, until: Instant) {
        cluster.turn(self.now());
        self.carry_out(cluster);
        while self.unsent() > UNSENT_BYTES_MAX {
            let until = self.now().after_ms(1000);
            self.wait(cluster, until);
        }
        if !cluster.has_answers() {
            self.wait(cluster, until);
        }
    }

    /// Comes back when all that was given to send is with the kernel, at most until `until`.
    pub fn settle<T>(&mut self, cluster: &mut Cluster<T>, until: Instant) {
        self.carry_out(cluster);
        while self.unsent() > 0 && self.now() < until {
            self.wait(cluster, until);
        }
    }

    fn unsent(&self) -> usize {
        self.sockets.values().map(|s| s.out.len() - s.sent).sum()
    }

    fn wait<T>(&mut self, cluster: &mut Cluster<T>, until: Instant) {
        let until = cluster.deadline().map_or(until, |d| d.min(until));
        let wait_us = until.since_us(self.now());
        let targets: Vec<Target> = self.sockets.keys().copied().collect();
        let mut fds: Vec<PollFd<'_>> = self
            .sockets
            .values()
            .map(|s| {
                let mut flags = PollFlags::IN;
                if s.sent < s.out.len() {
                    flags |= PollFlags::OUT;
                }
                PollFd::new(&s.stream, flags)
            })
            .collect();
        let timeout = Timespec {
            tv_sec: (wait_us / 1_000_000) as i64,
            tv_nsec: (wait_us % 1_000_000 * 1000) as i64,
        };
        let _ = poll(&mut fds, Some(&timeout));
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        cluster.turn(self.now());
        for (target, flags) in targets.into_iter().zip(events) {
            if flags.is_empty() {
                continue;
            }
            if let Err(reason) = self.ready(target, cluster) {
                self.sockets.remove(&target);
                cluster.on_closed(target, &reason);
            }
        }
        self.carry_out(cluster);
    }

    fn carry_out<T>(&mut self, cluster: &mut Cluster<T>) {
        loop {
            let out = cluster.take_out();
            if out.is_empty() {
                return;
            }
            for out in out {
                match out {
                    Out::Connect { target, host, port } => match connect(&host, port) {
                        Ok(stream) => {
                            self.sockets.insert(
                                target,
                                Socket {
                                    stream,
                                    out: Vec::new(),
                                    sent: 0,
                                    input: BytesMut::new(),
                                },
                            );
                            cluster.on_connected(target);
                        }
                        Err(error) => cluster.on_closed(target, &error.to_string()),
                    },
                    Out::Send { target, frame } => {
                        if let Some(socket) = self.sockets.get_mut(&target) {
                            if socket.sent == socket.out.len() {
                                socket.sent = 0;
                                socket.out = frame;
                            } else {
                                socket.out.extend_from_slice(&frame);
                            }
                        }
                    }
                    Out::Close { target } => {
                        self.sockets.remove(&target);
                    }
                }
            }
            let targets: Vec<Target> = self.sockets.keys().copied().collect();
            for target in targets {
                let socket = self.sockets.get_mut(&target).expect("just listed");
                if let Err(reason) = socket.flush() {
                    self.sockets.remove(&target);
                    cluster.on_closed(target, &reason);
                }
            }
        }
    }

    fn ready<T>(&mut self, target: Target, cluster: &mut Cluster<T>) -> Result<(), String> {
        let Some(socket) = self.sockets.get_mut(&target) else {
            return Ok(());
        };
        socket.flush()?;
        let closed = socket.receive();
        while let Some(frame) = socket.frame()? {
            cluster.on_frame(target, frame);
        }
        closed
    }
}

impl Socket {
    fn flush(&mut self) -> Result<(), String> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err("closed".to_string()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }

    /// Takes what has come; the error says that nothing more will.
    fn receive(&mut self) -> Result<(), String> {
        loop {
            let filled = self.input.len();
            let room = match self.wanted() {
                Some(bytes) if bytes > filled => {
                    (bytes - filled).clamp(RECV_BYTES, 64 * RECV_BYTES)
                }
                _ => RECV_BYTES,
            };
            self.input.resize(filled + room, 0);
            let result = self.stream.read(&mut self.input[filled..]);
            self.input.truncate(filled + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err("closed by the broker".to_string()),
                Ok(n) if n < room => return Ok(()),
                // Let whole frames be taken before more is received.
                Ok(_) if self.input.len() > 4 * RECV_BYTES => return Ok(()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Bytes of the frame at the front with its prefix.
    fn wanted(&self) -> Option<usize> {
        let prefix = self.input.first_chunk::<4>()?;
        Some(u32::from_be_bytes(*prefix) as usize + 4)
    }

    fn frame(&mut self) -> Result<Option<Bytes>, String> {
        let Some(bytes) = self.wanted() else {
            return Ok(None);
        };
        // Answers are not bounded by the bound of requests alone: a fetch may hold one batch more.
        if bytes > 2 * limit::REQUEST_BYTES_MAX as usize {
            return Err("the broker sent an impossible frame".to_string());
        }
        if self.input.len() < bytes {
            return Ok(None);
        }
        let mut frame = self.input.split_to(bytes).freeze();
        Ok(Some(frame.split_off(4)))
    }
}

fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
