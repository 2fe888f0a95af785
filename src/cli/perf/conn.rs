//! One non-blocking connection, and waiting for many.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::model::limit;

/// Bodies up to this are copied behind their heads: one piece to the kernel is cheaper than two.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Pieces handed to the kernel at once.
const PIECES_MAX: usize = 64;

const INPUT_BYTES: usize = 64 * 1024;

enum Piece {
    Own(Vec<u8>),
    Shared(Rc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }
}

pub struct Conn {
    stream: TcpStream,
    out: VecDeque<Piece>,
    /// Bytes of the first piece that are gone.
    sent: usize,
    /// An emptied piece to fill again.
    spare: Vec<u8>,
    input: Vec<u8>,
    /// What of `input` has come and is not taken yet.
    start: usize,
    end: usize,
}

impl Conn {
    pub fn connect(address: SocketAddr) -> Result<Conn, String> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            })
            .map_err(|error| format!("cannot connect to {address}: {error}"))?;
        Ok(Conn {
            stream,
            out: VecDeque::new(),
            sent: 0,
            spare: Vec::new(),
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
        })
    }

    /// Queues a frame of a head, which `fill` writes, and a body.
    pub fn queue(&mut self, fill: impl FnOnce(&mut Vec<u8>), body: &Rc<[u8]>) {
        if !matches!(self.out.back(), Some(Piece::Own(_))) {
            self.out
                .push_back(Piece::Own(std::mem::take(&mut self.spare)));
        }
        let Some(Piece::Own(bytes)) = self.out.back_mut() else {
            unreachable!("just pushed");
        };
        fill(bytes);
        if body.len() <= COPY_BYTES_MAX {
            bytes.extend_from_slice(body);
        } else {
            self.out.push_back(Piece::Shared(Rc::clone(body)));
        }
    }

    pub fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends until all is gone or the kernel takes no more: then an event comes when it does.
    pub fn flush(&mut self) -> Result<(), String> {
        while !self.out.is_empty() {
            let written = {
                let mut slices = [IoSlice::new(&[]); PIECES_MAX];
                let mut count = 0;
                for (slice, piece) in slices.iter_mut().zip(&self.out) {
                    let skip = if count == 0 { self.sent } else { 0 };
                    *slice = IoSlice::new(&piece.bytes()[skip..]);
                    count += 1;
                }
                self.stream.write_vectored(&slices[..count])
            };
            match written {
                Ok(0) => return Err("the connection was closed".to_string()),
                Ok(written) => self.written(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn written(&mut self, mut bytes: usize) {
        while let Some(front) = self.out.front() {
            let left = front.bytes().len() - self.sent;
            if bytes < left {
                self.sent += bytes;
                return;
            }
            bytes -= left;
            self.sent = 0;
            if let Some(Piece::Own(mut piece)) = self.out.pop_front()
                && self.spare.capacity() == 0
            {
                piece.clear();
                self.spare = piece;
            }
        }
    }

    /// Receives until nothing is left, and gives every whole frame, without its size, to `take`.
    pub fn receive(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let room = self.input.len() - self.end;
            match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) => return Err("the broker closed the connection".to_string()),
                Ok(n) => {
                    self.end += n;
                    self.take_frames(&mut take)?;
                    // Fewer than asked for: more will come with an event of its own.
                    if n < room {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Afterwards there is room for what is missing of the frame at the front.
    fn take_frames(
        &mut self,
        take: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let have = &self.input[self.start..self.end];
            let needed = match have.first_chunk::<4>() {
                Some(size) => 4 + u32::from_be_bytes(*size) as usize,
                None => 4,
            };
            if needed > 2 * limit::REQUEST_BYTES_MAX as usize {
                return Err("the broker sent an impossible frame".to_string());
            }
            if have.len() >= needed && needed > 4 {
                take(&have[4..needed])?;
                self.start += needed;
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                }
                continue;
            }
            if self.start + needed > self.input.len() {
                self.input.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                if needed > self.input.len() {
                    self.input.resize(needed.next_power_of_two(), 0);
                }
            }
            return Ok(());
        }
    }
}

/// Waits for many connections.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    pub fn new() -> Result<Poller, String> {
        let empty = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(|e| e.to_string())?,
            events: vec![empty; 256],
        })
    }

    /// Edge-triggered: an event comes once for everything that arrives, and when sending is possible again.
    pub fn add(&self, conn: &Conn, number: usize) -> Result<(), String> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(number as u64);
        epoll::add(&self.epoll, &conn.stream, data, flags).map_err(|e| e.to_string())
    }

    /// The numbers of the connections at which something happened, at most after `timeout_ns`.
    pub fn wait(&mut self, timeout_ns: u64, ready: &mut Vec<usize>) -> Result<(), String> {
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        ready.clear();
        match epoll::wait(&self.epoll, self.events.as_mut_slice(), Some(&timeout)) {
            Ok(count) => {
                ready.extend(self.events[..count].iter().map(|e| e.data.u64() as usize));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn frames_of_any_size_in_any_pieces_arrive_whole_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sizes = [1usize, 20_000, 3, 300_000, 70_000, 5];
        // The other side answers every frame with itself.
        let echo = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            for _ in 0..sizes.len() {
                let mut size = [0; 4];
                peer.read_exact(&mut size).unwrap();
                let mut body = vec![0; u32::from_be_bytes(size) as usize];
                peer.read_exact(&mut body).unwrap();
                peer.write_all(&size).unwrap();
                for piece in body.chunks(9_001) {
                    peer.write_all(piece).unwrap();
                }
            }
        });
        let mut conn = Conn::connect(address).unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&conn, 7).unwrap();
        for (i, size) in sizes.into_iter().enumerate() {
            let body: Rc<[u8]> = vec![i as u8; size - 1].into();
            let head = |bytes: &mut Vec<u8>| {
                bytes.extend_from_slice(&(size as u32).to_be_bytes());
                bytes.push(0xaa);
            };
            conn.queue(head, &body);
        }
        let mut got = Vec::new();
        let mut ready = Vec::new();
        while got.len() < sizes.len() {
            conn.flush().unwrap();
            poller.wait(1_000_000_000, &mut ready).unwrap();
            assert!(ready.iter().all(|number| *number == 7));
            let take = |frame: &[u8]| {
                got.push((frame.len(), frame[0], *frame.last().unwrap()));
                Ok(())
            };
            conn.receive(take).unwrap();
        }
        let expected = sizes.into_iter().enumerate().map(|(i, size)| {
            let last = if size == 1 { 0xaa } else { i as u8 };
            (size, 0xaa, last)
        });
        assert_eq!(got, expected.collect::<Vec<_>>());
        assert!(conn.is_flushed());
        echo.join().unwrap();
    }
}
