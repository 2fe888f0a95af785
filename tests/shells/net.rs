use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use corelane::log::{Block, DiskOp, FileId, FileRef, MemSpan, Span};
use corelane::model::ConnId;
use corelane::model::limit::{CONN_REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use corelane::shard::{Actions, Chunk, Event};

use crate::rig::{Rig, Server, test_dir};

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut body = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

fn body(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8)
        .collect()
}

/// Answers each frame with itself; a half-closed connection is closed when that is sent.
fn echo(event: Event, actions: &mut Actions) {
    match event {
        Event::Frame { conn, frame } => {
            let size = (frame.len() as u32).to_be_bytes();
            actions
                .sends
                .push((conn, Chunk::Bytes(Bytes::copy_from_slice(&size))));
            actions.sends.push((conn, Chunk::Bytes(frame)));
        }
        Event::HalfClosed { conn } => actions.closes.push(conn),
        _ => {}
    }
}

/// Closed means: an end or a reset, but no byte.
fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{} bytes", rest.len()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn frames_of_any_size_in_any_pieces_come_back_in_order() {
    let server = Server::start(|_| echo);
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let mut stream = connect(server.address);
            std::thread::spawn(move || {
                let sizes = [
                    0, 1, 3, 4, 5, 100, 4_096, 70_000, 131_072, 131_073, 900_000, 1, 0, 2_200_000,
                    9_000_000, 17,
                ];
                let mut sender = stream.try_clone().unwrap();
                let sending = std::thread::spawn(move || {
                    let mut stream = Vec::new();
                    for (i, size) in sizes.iter().enumerate() {
                        stream.extend_from_slice(&framed(&body(*size, i + client)));
                    }
                    let mut at = 0;
                    let mut piece = 1 + client;
                    while at < stream.len() {
                        let end = (at + piece).min(stream.len());
                        sender.write_all(&stream[at..end]).unwrap();
                        at = end;
                        piece = piece * 7 % 100_003 + 1;
                    }
                });
                for (i, size) in sizes.iter().enumerate() {
                    assert!(
                        read_frame(&mut stream) == body(*size, i + client),
                        "frame {i}"
                    );
                }
                sending.join().unwrap();
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn pipelined_requests_leave_in_few_system_calls_and_in_order() {
    let server = Server::start(|_| echo);
    let mut stream = connect(server.address);
    let mut all = Vec::new();
    for i in 0..20_000u32 {
        all.extend_from_slice(&framed(&i.to_be_bytes()));
    }
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&all).unwrap());
    for i in 0..20_000u32 {
        assert_eq!(read_frame(&mut stream), i.to_be_bytes());
    }
    sending.join().unwrap();
    assert_eq!(server.stop().frames, 20_000);
}

#[test]
fn a_half_closed_connection_gets_its_answers_then_the_end() {
    let server = Server::start(|_| echo);
    let mut stream = connect(server.address);
    for i in 0..3u8 {
        stream.write_all(&framed(&[i; 1000])).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    for i in 0..3u8 {
        assert_eq!(read_frame(&mut stream), [i; 1000]);
    }
    assert_closed(&mut stream);
}

#[test]
fn a_size_out_of_bounds_closes_that_connection_unread() {
    let server = Server::start(|_| echo);
    let mut other = connect(server.address);
    for claimed in [REQUEST_BYTES_MAX as i32 + 1, -1, i32::MIN, i32::MAX] {
        let mut stream = connect(server.address);
        stream.write_all(&framed(b"fine")).unwrap();
        assert_eq!(read_frame(&mut stream), b"fine");
        stream.write_all(&claimed.to_be_bytes()).unwrap();
        assert_closed(&mut stream);
    }
    other.write_all(&framed(b"still here")).unwrap();
    assert_eq!(read_frame(&mut other), b"still here");
    assert_eq!(server.stop().bad_sizes, 4);
}

/// Each connection ends exactly once, whichever way.
#[test]
fn every_opened_connection_is_closed_once() {
    let (said, heard) = mpsc::channel();
    let server = Server::start(move |_| {
        let mut open = BTreeMap::new();
        move |event: Event, actions: &mut Actions| {
            match &event {
                Event::Open { conn, .. } => assert!(open.insert(*conn, ()).is_none()),
                Event::Closed { conn } => {
                    assert!(open.remove(conn).is_some());
                    said.send(open.len()).unwrap();
                }
                Event::Frame { conn, .. }
                | Event::HalfClosed { conn }
                | Event::Sent { conn, .. } => {
                    assert!(open.contains_key(conn));
                }
                _ => {}
            }
            echo(event, actions);
        }
    });
    for round in 0..30 {
        let mut stream = connect(server.address);
        stream.write_all(&framed(b"hello")).unwrap();
        match round % 3 {
            // A plain close, with the answer unread or read.
            0 => {}
            1 => assert_eq!(read_frame(&mut stream), b"hello"),
            // A reset.
            _ => socket2::SockRef::from(&stream)
                .set_linger(Some(Duration::ZERO))
                .unwrap(),
        }
    }
    for _ in 0..30 {
        heard.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}

/// Answers a frame with `answer` bytes of memory as often as the connection's bound allows, and counts what waits.
fn flood(answer: usize, most: Arc<AtomicUsize>) -> impl FnMut(Event, &mut Actions) {
    let block = Block::new(answer);
    block.append(&body(answer, 1));
    let mut waiting: BTreeMap<ConnId, (usize, usize)> = BTreeMap::new();
    move |event, actions| {
        let conn = match event {
            Event::Frame { conn, frame } if frame.len() == 4 => {
                let count = u32::from_be_bytes(frame[..].try_into().unwrap());
                waiting.entry(conn).or_default().1 += count as usize;
                conn
            }
            Event::Sent { conn, bytes } => match waiting.get_mut(&conn) {
                Some(entry) => {
                    entry.0 -= bytes;
                    conn
                }
                None => return,
            },
            other => return echo(other, actions),
        };
        let (queued, due) = waiting.get_mut(&conn).unwrap();
        while *due > 0 && *queued < CONN_REPLY_BYTES_MAX {
            *due -= 1;
            *queued += answer;
            let span = MemSpan::new(&block, 0, answer);
            actions.sends.push((conn, Chunk::Span(Span::Memory(span))));
        }
        most.fetch_max(*queued, Ordering::Relaxed);
    }
}

#[test]
fn a_stuck_reader_is_bounded_and_stalls_nobody() {
    let most = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&most);
    let server = Server::start(move |_| flood(1 << 20, counted));
    let mut stuck = connect(server.address);
    stuck.write_all(&framed(&64u32.to_be_bytes())).unwrap();
    let mut other = connect(server.address);
    let mut slowest = Duration::ZERO;
    for i in 0..500u32 {
        let begin = Instant::now();
        let body = [&i.to_be_bytes()[..], b"not a count"].concat();
        other.write_all(&framed(&body)).unwrap();
        assert_eq!(read_frame(&mut other), body);
        slowest = slowest.max(begin.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // At most one answer above the bound waits, however long the reader sleeps.
    assert!(most.load(Ordering::Relaxed) <= CONN_REPLY_BYTES_MAX + (1 << 20));
    // And when it wakes up, every byte is there.
    let expected = body(1 << 20, 1);
    let mut got = vec![0; 1 << 20];
    for _ in 0..64 {
        stuck.read_exact(&mut got).unwrap();
        assert!(got == expected);
    }
}

#[test]
fn a_paused_connection_is_not_received_from_until_it_is_resumed() {
    let (said, heard) = mpsc::channel();
    let server = Server::start(move |_| {
        let mut paused = None;
        move |event: Event, actions: &mut Actions| match event {
            Event::Frame { conn, frame } if &frame[..] == b"pause" => {
                paused = Some(conn);
                actions.pauses.push((conn, true));
                said.send("paused").unwrap();
            }
            Event::Frame { conn, frame } if &frame[..] == b"resume" => {
                actions.pauses.push((paused.take().unwrap(), false));
                actions.closes.push(conn);
            }
            Event::Frame { .. } => {
                said.send("frame").unwrap();
            }
            _ => {}
        }
    });
    let wait = Duration::from_secs(10);
    let mut stream = connect(server.address);
    stream.write_all(&framed(b"pause")).unwrap();
    assert_eq!(heard.recv_timeout(wait).unwrap(), "paused");
    stream.write_all(&framed(b"later")).unwrap();
    let mut control = connect(server.address);
    assert_eq!(
        heard.recv_timeout(Duration::from_millis(200)),
        Err(mpsc::RecvTimeoutError::Timeout)
    );
    control.write_all(&framed(b"resume")).unwrap();
    assert_eq!(heard.recv_timeout(wait).unwrap(), "frame");
}

const FILE_BYTES: usize = 6 << 20;

const WARM: u32 = 0;
/// The file leaves the page cache first.
const COLD: u32 = 1;
/// What lies behind the range is told to be on disk, too.
const AND_MORE: u32 = 2;

/// Answers `[at, len, how]` with a header, the file's range and a trailer in memory.
fn file_server(rig: &mut Rig) -> impl FnMut(Event, &mut Actions) + use<> {
    let content = body(FILE_BYTES, 9);
    let dir = test_dir("span");
    std::fs::write(dir.join("segment"), &content).unwrap();
    let file = std::fs::File::open(dir.join("segment")).unwrap();
    file.sync_all().unwrap();
    // Opening with a path outside the server's own folder, so that the test knows where the file is.
    rig.run_one(DiskOp::Open {
        file: FileId(5),
        path: dir.join("segment").to_str().unwrap().into(),
        create: false,
        allocate: 0,
    })
    .unwrap();
    let claim = Rc::new(FileRef { id: FileId(5) });
    let claims = Rc::new(RefCell::new(0));
    move |event, actions| match event {
        Event::Frame { conn, frame } => {
            let number = |i: usize| u32::from_be_bytes(frame[i..i + 4].try_into().unwrap());
            let (at, len, how) = (number(0), number(4), number(8));
            if how == COLD {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 0).unwrap();
            }
            let trailer = Block::new(16);
            trailer.append(b"the trailer");
            let total = len + 6 + 11;
            let header = [&total.to_be_bytes()[..], b"header"].concat();
            let span = |span| Chunk::Span(span);
            actions.sends.push((conn, Chunk::Bytes(header.into())));
            actions.sends.push((
                conn,
                span(Span::File {
                    more: match how {
                        AND_MORE => FILE_BYTES as u64 - u64::from(at + len),
                        _ => 0,
                    },
                    file: Rc::clone(&claim),
                    at: u64::from(at),
                    len,
                }),
            ));
            actions
                .sends
                .push((conn, span(Span::Memory(MemSpan::new(&trailer, 0, 11)))));
            *claims.borrow_mut() += 1;
        }
        Event::Closed { .. } => {
            // What a send holds goes with it.
            assert_eq!(Rc::strong_count(&claim), 1);
        }
        other => echo(other, actions),
    }
}

#[test]
fn file_spans_arrive_whole_between_memory_warm_and_cold() {
    let server = Server::start(file_server);
    let content = body(FILE_BYTES, 9);
    // One connection: the server checks at its end that no send holds the file any more.
    let mut stream = connect(server.address);
    for how in [WARM, COLD] {
        for (at, len) in [
            (0, FILE_BYTES),
            (1, 1),
            (4095, 2),
            (12_345, 3_000_001),
            (FILE_BYTES - 1, 1),
            (5 << 20, 1 << 20),
        ] {
            let request = [at as u32, len as u32, how].map(u32::to_be_bytes).concat();
            stream.write_all(&framed(&request)).unwrap();
            let answer = read_frame(&mut stream);
            assert_eq!(&answer[..6], b"header");
            assert!(
                answer[6..6 + len] == content[at..at + len],
                "[{at}..+{len})"
            );
            assert_eq!(&answer[6 + len..], b"the trailer");
        }
    }
    let stats = server.stop();
    assert!(
        stats.page_ins > 0,
        "cold ranges are brought in off the core"
    );
}

#[test]
fn who_reads_on_finds_what_comes_next_in_the_page_cache() {
    const PIECE: usize = 64 << 10;
    let server = Server::start(file_server);
    let content = body(FILE_BYTES, 9);
    let mut stream = connect(server.address);
    let mut pieces = 0;
    for at in (0..FILE_BYTES).step_by(PIECE) {
        let how = if at == 0 { COLD } else { AND_MORE };
        let request = [at as u32, PIECE as u32, how]
            .map(u32::to_be_bytes)
            .concat();
        stream.write_all(&framed(&request)).unwrap();
        let answer = read_frame(&mut stream);
        assert!(answer[6..6 + PIECE] == content[at..at + PIECE], "at {at}");
        pieces += 1;
    }
    drop(stream);
    let stats = server.stop();
    // A read is eight pieces long.
    assert!(
        (2..pieces / 4).contains(&stats.page_ins),
        "{} reads for {pieces} pieces",
        stats.page_ins
    );
}

#[test]
fn a_span_past_the_end_of_its_file_closes_the_connection() {
    let server = Server::start(file_server);
    let mut stream = connect(server.address);
    let request = [FILE_BYTES as u32 - 10, 20, 0]
        .map(u32::to_be_bytes)
        .concat();
    stream.write_all(&framed(&request)).unwrap();
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    // The announced size, the header and what the file has, then the end: the peer can tell that it is short.
    assert_eq!(got.len(), 4 + 6 + 10);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Set in the process that a test starts of itself, because memory and descriptors are counted per process.
const IN_CHILD: &str = "CORELANE_SHELLS_CHILD";

fn is_child() -> bool {
    std::env::var_os(IN_CHILD).is_some()
}

/// This program again, with nothing but this test, which then finds itself to be the child.
fn child(test: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(IN_CHILD, "1");
    command
}

fn descriptors(soft: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(soft);
    limit.maximum = limit.maximum.map(|max| max.max(soft));
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn ten_thousand_idle_connections_cost_under_2_kib_each() {
    descriptors(12_000);
    if is_child() {
        return serve_and_tell_memory();
    }
    let mut child = child("net::ten_thousand_idle_connections_cost_under_2_kib_each")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ask = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = |name: &str| -> usize {
        loop {
            let line = answers.next().expect("the child answers").unwrap();
            if let Some(number) = line.strip_prefix(name) {
                return number.parse().unwrap();
            }
        }
    };
    let address = SocketAddr::from(([127, 0, 0, 1], answer("port ") as u16));
    // Once warm: buffers and tables of the shard are not the connections' cost.
    let mut first = connect(address);
    first.write_all(&framed(&body(100_000, 3))).unwrap();
    read_frame(&mut first);
    ask.write_all(b"\n").unwrap();
    let before = answer("resident ");
    let count = 10_000;
    let mut idle = Vec::with_capacity(count);
    for i in 0..count {
        let mut stream = connect(address);
        stream
            .write_all(&framed(&(i as u32).to_be_bytes()))
            .unwrap();
        idle.push(stream);
    }
    for (i, stream) in idle.iter_mut().enumerate() {
        assert_eq!(read_frame(stream), (i as u32).to_be_bytes());
    }
    ask.write_all(b"\n").unwrap();
    let each = answer("resident ").saturating_sub(before) / count;
    println!("{each} bytes of resident memory an idle connection");
    assert!(each < 2048, "{each}");
    for stream in idle.iter_mut().step_by(97) {
        stream.write_all(&framed(b"awake")).unwrap();
        assert_eq!(read_frame(stream), b"awake");
    }
    drop(ask);
    assert!(child.wait().unwrap().success());
}

/// The server's side, in a process of its own: a line in, its memory out, until the end of its input.
fn serve_and_tell_memory() {
    let server = Server::start(|_| echo);
    println!("\nport {}", server.address.port());
    for _ in std::io::stdin().lines() {
        println!("\nresident {}", resident_bytes());
    }
}

#[test]
fn out_of_descriptors_old_connections_go_on_and_new_ones_are_taken_later() {
    if !is_child() {
        let name = "net::out_of_descriptors_old_connections_go_on_and_new_ones_are_taken_later";
        let output = child(name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        // A name that fits nothing would pass without having run.
        let ran = output.status.success() && said.contains("1 passed");
        assert!(ran, "{said}{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let server = Server::start(|_| echo);
    let mut old = connect(server.address);
    old.write_all(&framed(b"before")).unwrap();
    assert_eq!(read_frame(&mut old), b"before");
    let mut new = {
        // All descriptors but the one of the client's side are taken.
        let mut hoard = Vec::new();
        descriptors(100);
        while let Ok(file) = std::fs::File::open("/dev/null") {
            hoard.push(file);
        }
        hoard.pop();
        let mut new = connect(server.address);
        new.write_all(&framed(b"waiting")).unwrap();
        for _ in 0..100 {
            old.write_all(&framed(b"during")).unwrap();
            assert_eq!(read_frame(&mut old), b"during");
        }
        new.set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let blocked = new.read(&mut [0]).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        new
    };
    new.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(read_frame(&mut new), b"waiting");
}
