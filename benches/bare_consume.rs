//! The yardstick of consuming: what the kernel alone asks for sending answers of a size, by sendfile from the page cache and by writev from
//! memory, with nothing of Kafka behind it. One server thread on one core, one reader on another.
//!
//! `cargo bench --bench bare_consume -- [--server-cpu 0] [--client-cpu 1] [--seconds 3] [--connections 4] [--dir DIR] [--only Sendfile:1048576]` prints one JSON object
//! a case (a way and the bytes of an answer; --only may be given more than once): CPU seconds of the server thread per GB (10^9 bytes) and MB/s. A request is 4 bytes, as small as can be; an answer is a prefix of 60
//! bytes (a Fetch answer's header) and the payload.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const PREFIX: [u8; 60] = [7; 60];
const FILE_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Sendfile,
    Writev,
}

struct Options {
    server_cpu: usize,
    client_cpu: usize,
    seconds: f64,
    connections: usize,
    dir: PathBuf,
    /// Cases, as `Way:bytes`; all of them if empty.
    only: Vec<String>,
}

fn main() {
    let options = options();
    let path = options
        .dir
        .join(format!("bare-consume-{}", std::process::id()));
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .expect("a file in --dir");
    std::fs::remove_file(&path).expect("it was just made");
    let chunk = vec![42u8; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&chunk).expect("256 MiB fit into --dir");
    }
    file.sync_all().expect("a disk that syncs");
    file.seek(SeekFrom::Start(0)).expect("a file");
    let file = Arc::new(file);
    for (way, bytes) in [
        (Way::Sendfile, 1 << 20),
        (Way::Sendfile, 64 << 10),
        (Way::Writev, 1 << 20),
        (Way::Writev, 64 << 10),
    ] {
        let wanted = options.only.is_empty() || options.only.contains(&format!("{way:?}:{bytes}"));
        if wanted {
            run(&options, &file, way, bytes);
        }
    }
}

fn options() -> Options {
    let mut options = Options {
        server_cpu: 0,
        client_cpu: 1,
        seconds: 3.0,
        connections: 4,
        dir: std::env::temp_dir(),
        only: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} has a value"));
        match arg.as_str() {
            "--server-cpu" => options.server_cpu = value().parse().expect("a CPU"),
            "--client-cpu" => options.client_cpu = value().parse().expect("a CPU"),
            "--seconds" => options.seconds = value().parse().expect("seconds"),
            "--connections" => options.connections = value().parse().expect("a count"),
            "--dir" => options.dir = value().into(),
            "--only" => options.only.push(value()),
            // What `cargo bench` says to every bench.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("a CPU that this process may use");
}

fn thread_cpu() -> f64 {
    let at = clock_gettime(ClockId::ThreadCPUTime);
    at.tv_sec as f64 + at.tv_nsec as f64 / 1e9
}

fn run(options: &Options, file: &Arc<File>, way: Way, bytes: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let stop = Arc::new(AtomicBool::new(false));
    let (cpu, connections, client_stop) =
        (options.client_cpu, options.connections, Arc::clone(&stop));
    let client = std::thread::spawn(move || {
        pin(cpu);
        drain(address, connections, bytes, &client_stop)
    });
    let (cpu, file, server_stop) = (options.server_cpu, Arc::clone(file), Arc::clone(&stop));
    let server = std::thread::spawn(move || {
        pin(cpu);
        serve(&listener, connections, &file, way, bytes, &server_stop)
    });
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    stop.store(true, Ordering::Relaxed);
    let (sent, cpu, wall) = server.join().expect("the server ran");
    client.join().expect("the client ran");
    println!(
        "{{\"way\":\"{way:?}\",\"answer_bytes\":{bytes},\"connections\":{connections},\"cpu_s_per_gb\":{:.4},\"mb_per_s\":{:.0},\"cpu_us_per_request\":{:.2}}}",
        cpu / (sent as f64 / 1e9),
        sent as f64 / 1e6 / wall,
        cpu * 1e6 / (sent as f64 / bytes as f64),
    );
}

/// Asks on every connection and throws the answers away, one request in flight on each.
fn drain(address: std::net::SocketAddr, connections: usize, bytes: usize, stop: &AtomicBool) {
    let mut streams: Vec<(TcpStream, usize)> = (0..connections)
        .map(|_| (TcpStream::connect(address).expect("it listens"), 0))
        .collect();
    for (stream, left) in &mut streams {
        stream.set_nodelay(true).expect("a socket");
        stream.write_all(&[0; 4]).expect("a peer");
        *left = PREFIX.len() + bytes;
    }
    let mut sink = vec![0u8; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        let mut fds: Vec<PollFd> = streams
            .iter()
            .map(|(stream, _)| PollFd::new(stream, PollFlags::IN))
            .collect();
        poll(
            &mut fds,
            Some(&Duration::from_millis(50).try_into().expect("short")),
        )
        .expect("poll");
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for ((stream, left), _) in streams.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            let got = stream.read(&mut sink).expect("a peer");
            if got == 0 {
                return;
            }
            *left -= got;
            if *left == 0 {
                stream.write_all(&[0; 4]).expect("a peer");
                *left = PREFIX.len() + bytes;
            }
        }
    }
}

struct Conn {
    stream: TcpStream,
    /// Payload bytes of the answer under way that are not sent, and of its prefix.
    left: usize,
    prefix: usize,
    at: u64,
}

/// Answers until told to stop; gives payload bytes, CPU seconds and wall seconds.
fn serve(
    listener: &TcpListener,
    connections: usize,
    file: &File,
    way: Way,
    bytes: usize,
    stop: &AtomicBool,
) -> (u64, f64, f64) {
    let memory = vec![42u8; 8 << 20];
    let mut conns: Vec<Conn> = (0..connections)
        .map(|index| {
            let (stream, _) = listener.accept().expect("a client");
            stream.set_nonblocking(true).expect("a socket");
            stream.set_nodelay(true).expect("a socket");
            Conn {
                stream,
                left: 0,
                prefix: 0,
                at: index as u64 * (8 << 20),
            }
        })
        .collect();
    let mut sent = 0u64;
    let (cpu, start) = (thread_cpu(), Instant::now());
    let mut ready: VecDeque<usize> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let mut fds: Vec<PollFd> = conns
            .iter()
            .map(|conn| {
                let busy = conn.left + conn.prefix > 0;
                PollFd::new(
                    &conn.stream,
                    if busy { PollFlags::OUT } else { PollFlags::IN },
                )
            })
            .collect();
        poll(
            &mut fds,
            Some(&Duration::from_millis(50).try_into().expect("short")),
        )
        .expect("poll");
        ready.extend((0..fds.len()).filter(|index| !fds[*index].revents().is_empty()));
        while let Some(index) = ready.pop_front() {
            let conn = &mut conns[index];
            if conn.left + conn.prefix == 0 {
                let mut request = [0; 4];
                if conn.stream.read(&mut request).is_ok_and(|got| got == 4) {
                    (conn.left, conn.prefix) = (bytes, PREFIX.len());
                    if conn.at + bytes as u64 > FILE_BYTES {
                        conn.at = 0;
                    }
                } else {
                    continue;
                }
            }
            sent += answer(conn, file, &memory, way) as u64;
        }
    }
    (sent, thread_cpu() - cpu, start.elapsed().as_secs_f64())
}

/// Sends what the socket takes; gives payload bytes.
fn answer(conn: &mut Conn, file: &File, memory: &[u8], way: Way) -> usize {
    let mut sent = 0;
    loop {
        let step = match way {
            Way::Writev => {
                let from = (conn.at as usize) % (memory.len() - (1 << 20));
                let parts = [
                    IoSlice::new(&PREFIX[PREFIX.len() - conn.prefix..]),
                    IoSlice::new(&memory[from..from + conn.left.min(1 << 20)]),
                ];
                conn.stream.write_vectored(&parts).unwrap_or(0)
            }
            Way::Sendfile if conn.prefix > 0 => rustix::net::send(
                &conn.stream,
                &PREFIX[PREFIX.len() - conn.prefix..],
                rustix::net::SendFlags::MORE,
            )
            .unwrap_or(0),
            Way::Sendfile => {
                let mut at = conn.at;
                rustix::fs::sendfile(&conn.stream, file, Some(&mut at), conn.left).unwrap_or(0)
            }
        };
        if step == 0 {
            return sent;
        }
        let of_prefix = step.min(conn.prefix);
        conn.prefix -= of_prefix;
        conn.left -= step - of_prefix;
        conn.at += (step - of_prefix) as u64;
        sent += step - of_prefix;
        if conn.left + conn.prefix == 0 {
            return sent;
        }
    }
}
