//! The operator's port: `/metrics`, `/health/live`, `/health/ready`, `/status` and `/log-level`, on one plain thread.
//!
//! The thread shares nothing with the shards: it sends each an order to tell how it is, wakes it, and waits [`SCRAPE_MS`] at most. A
//! shard that does not answer by then is told as down; its answer, when it comes, is thrown away. Nobody is asked twice at a time.
//!
//! There is no authentication, so the port is on loopback unless the operator says otherwise; nothing here changes data.

mod metrics;
mod status;

pub use metrics::{FAMILIES, Family};

use std::cell::Cell;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Mutex;

use super::config::{BootError, ServerConfig};
use super::drive::{Order, Told};
use super::ring::Waker;
use crate::model::limit::{OPERATOR_CONNS_MAX, OPERATOR_REQUEST_MS, SCRAPE_MS};
use crate::net;

const SETTING: &str = "metrics.listener";

/// Shows the filter of logs, and sets it where one is given; the error says what is wrong with it.
pub type LogFilter = Box<dyn Fn(Option<&str>) -> Result<String, String> + Send>;

/// Where the process is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Starting,
    Serving,
    Stopping,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Stopping => "stopping",
        }
    }
}

/// What the thread asks one shard with.
pub(super) struct Asked {
    pub orders: flume::Sender<Order>,
    pub waker: Waker,
}

/// What the thread tells that does not come from a shard.
pub(super) struct About {
    pub process: i32,
    pub cluster: String,
    pub log_dir: String,
    pub log_filter: LogFilter,
}

/// Binds the port, if there is to be one.
pub(super) fn bind(config: &ServerConfig) -> Result<Option<TcpListener>, BootError> {
    let text = config.statics.text(SETTING).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| {
        BootError(format!(
            "{SETTING}={text}: {why}; set it to HOST:PORT of this machine, such as 127.0.0.1:9644, or to nothing"
        ))
    };
    let address = resolve(&text).map_err(&wrong)?;
    match net::bind(address) {
        Ok(socket) => Ok(Some(socket)),
        // Nobody asked for this very port, and several processes may run side by side.
        Err(error)
            if error.kind() == std::io::ErrorKind::AddrInUse
                && config.statics.explicit(SETTING).is_none() =>
        {
            let any = SocketAddr::new(address.ip(), 0);
            net::bind(any)
                .map(Some)
                .map_err(|error| wrong(error.to_string()))
        }
        Err(error) => Err(wrong(format!("cannot listen there: {error}"))),
    }
}

fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or("the host has no address".to_string())
}

/// Starts the thread. It ends when the other side of `phases` is dropped.
pub(super) fn start(
    socket: TcpListener,
    shards: Vec<Asked>,
    about: About,
    phases: flume::Receiver<Phase>,
) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    std::thread::Builder::new()
        .name("operator".into())
        .stack_size(256 * 1024)
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let served = runtime.and_then(|runtime| {
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, serve(socket, shards, about, phases))
            });
            if let Err(error) = served {
                tracing::error!(%error, "the operator's port is closed: its thread cannot go on");
            }
        })
        .map(drop)
}

async fn serve(
    socket: TcpListener,
    shards: Vec<Asked>,
    about: About,
    phases: flume::Receiver<Phase>,
) -> std::io::Result<()> {
    let socket = tokio::net::TcpListener::from_std(socket)?;
    let operator = Rc::new(Operator {
        about,
        since: Instant::now(),
        phase: Cell::new(Phase::Starting),
        shards: Mutex::new(shards.into_iter().map(Member::new).collect()),
        conns: Cell::new(0),
    });
    let follow = {
        let operator = Rc::clone(&operator);
        async move {
            while let Ok(phase) = phases.recv_async().await {
                operator.phase.set(phase);
            }
        }
    };
    tokio::select! {
        () = follow => Ok(()),
        () = accept(socket, operator) => Ok(()),
    }
}

async fn accept(socket: tokio::net::TcpListener, operator: Rc<Operator>) {
    loop {
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection of the operator's port is lost");
                // Out of descriptors: it would fail again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if operator.conns.get() >= OPERATOR_CONNS_MAX {
            continue;
        }
        operator.conns.set(operator.conns.get() + 1);
        let operator = Rc::clone(&operator);
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| {
                let operator = Rc::clone(&operator);
                async move { Ok::<_, Infallible>(operator.answer(request).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_millis(OPERATOR_REQUEST_MS))
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of the operator's port ends");
            }
            operator.conns.set(operator.conns.get() - 1);
        });
    }
}

/// A shard, as this thread asks it.
struct Member {
    asked: Asked,
    answers: flume::Sender<Box<Told>>,
    answered: flume::Receiver<Box<Told>>,
    /// It has not answered yet; what comes is of an earlier question.
    owes: bool,
}

impl Member {
    fn new(asked: Asked) -> Member {
        let (answers, answered) = flume::bounded(1);
        Member {
            asked,
            answers,
            answered,
            owes: false,
        }
    }

    /// Throws away what came late, and asks unless an answer is still due.
    fn ask(&mut self) {
        if self.owes && self.answered.try_recv().is_ok() {
            self.owes = false;
        }
        if !self.owes
            && self
                .asked
                .orders
                .send(Order::Tell(self.answers.clone()))
                .is_ok()
        {
            self.owes = true;
            self.asked.waker.wake();
        }
    }

    async fn answer(&mut self, deadline: tokio::time::Instant) -> Option<Box<Told>> {
        if !self.owes {
            return None;
        }
        let answer = tokio::time::timeout_at(deadline, self.answered.recv_async()).await;
        let told = answer.ok()?.ok()?;
        self.owes = false;
        Some(told)
    }
}

async fn ask_all(shards: &mut [Member], deadline: tokio::time::Instant) -> Vec<Option<Box<Told>>> {
    shards.iter_mut().for_each(Member::ask);
    let mut told = Vec::with_capacity(shards.len());
    for shard in shards {
        told.push(shard.answer(deadline).await);
    }
    told
}

struct Operator {
    about: About,
    since: Instant,
    phase: Cell<Phase>,
    /// Locked while all are asked.
    shards: Mutex<Vec<Member>>,
    conns: Cell<usize>,
}

type Answer = Response<Full<Bytes>>;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn not_allowed(methods: &'static str) -> Answer {
    let text = format!("allowed here: {methods}\n");
    let mut answer = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

impl Operator {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/log-level" => self.log_level(&request),
            "/metrics" | "/status" | "/health/live" | "/health/ready" if !reads => {
                not_allowed("GET, HEAD")
            }
            "/metrics" => {
                let told = self.ask().await;
                let text = metrics::render(&told, self.since.elapsed());
                reply(StatusCode::OK, PROMETHEUS, text)
            }
            "/status" => {
                let told = self.ask().await;
                let status = status::status(&self.about, self.phase.get(), self.since, &told);
                reply(StatusCode::OK, JSON, format!("{status:#}\n"))
            }
            "/health/live" => health(live(&self.ask().await)),
            "/health/ready" => health(ready(self.phase.get(), &self.ask().await)),
            _ => reply(
                StatusCode::NOT_FOUND,
                TEXT,
                "here are /metrics, /health/live, /health/ready, /status and /log-level\n",
            ),
        }
    }

    /// Every shard as it is now; `None` for one that does not answer in time.
    async fn ask(&self) -> Vec<Option<Box<Told>>> {
        let mut shards = self.shards.lock().await;
        let deadline = tokio::time::Instant::now() + Duration::from_millis(SCRAPE_MS);
        ask_all(&mut shards, deadline).await
    }

    fn log_level(&self, request: &Request<Incoming>) -> Answer {
        let filter = match *request.method() {
            Method::GET | Method::HEAD => None,
            Method::PUT => {
                let query = request.uri().query().unwrap_or_default();
                match query.strip_prefix("filter=").map(unescape) {
                    Some(Some(filter)) => Some(filter),
                    _ => {
                        let text = "write /log-level?filter=FILTER, such as info or warn,corelane::log=debug\n";
                        return reply(StatusCode::BAD_REQUEST, TEXT, text);
                    }
                }
            }
            _ => return not_allowed("GET, HEAD, PUT"),
        };
        match (self.about.log_filter)(filter.as_deref()) {
            Ok(now) => {
                if filter.is_some() {
                    tracing::info!(filter = now, "the filter of logs is changed");
                }
                reply(StatusCode::OK, TEXT, format!("{now}\n"))
            }
            Err(why) => reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
        }
    }
}

/// `%2C` and `+` as they were meant; `None` where that is no text.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn health(faults: Vec<String>) -> Answer {
    match faults.is_empty() {
        true => reply(StatusCode::OK, TEXT, "ok\n"),
        false => {
            let text = faults.join("\n") + "\n";
            reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
        }
    }
}

/// A shard that answers has ended a turn and begun another.
fn live(told: &[Option<Box<Told>>]) -> Vec<String> {
    let silent = told.iter().enumerate().filter(|(_, told)| told.is_none());
    silent
        .map(|(shard, _)| format!("shard {shard} does not answer within {SCRAPE_MS} ms"))
        .collect()
}

fn ready(phase: Phase, told: &[Option<Box<Told>>]) -> Vec<String> {
    let mut faults = live(told);
    if phase != Phase::Serving {
        faults.push(format!("the process is {}", phase.name()));
    }
    for told in told.iter().flatten() {
        let shard = &told.shard;
        if let Some(why) = &shard.failed {
            faults.push(format!("shard {} writes nothing: {why}", shard.shard.0));
        } else if !shard.ready {
            faults.push(format!("shard {} does not serve yet", shard.shard.0));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_in_a_query_is_read_as_it_was_meant() {
        assert_eq!(unescape("warn%2Ca=debug").as_deref(), Some("warn,a=debug"));
        assert_eq!(unescape("a+b").as_deref(), Some("a b"));
        for broken in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(unescape(broken), None, "{broken}");
        }
    }

    /// However often it is asked, a shard that is stuck has one order in its queue.
    #[test]
    fn a_shard_that_does_not_answer_is_left_out_and_asked_once() {
        let (orders, orders_taken) = flume::unbounded();
        let waker = Waker::new().unwrap();
        let mut shards = [Member::new(Asked { orders, waker })];
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        for _ in 0..3 {
            let now = tokio::time::Instant::now();
            let told = runtime.block_on(async { ask_all(&mut shards, now).await });
            assert!(told[0].is_none());
        }
        assert_eq!(orders_taken.len(), 1);
    }

    #[test]
    fn a_process_is_ready_only_while_it_serves_and_every_shard_answers() {
        assert_eq!(ready(Phase::Serving, &[]), Vec::<String>::new());
        assert_eq!(ready(Phase::Stopping, &[]), ["the process is stopping"]);
        assert_eq!(
            ready(Phase::Serving, &[None]),
            ["shard 0 does not answer within 1000 ms"]
        );
    }
}
