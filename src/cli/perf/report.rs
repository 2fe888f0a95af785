//! What was measured.

use std::fmt;
use std::time::Instant;

use hdrhistogram::Histogram;

/// Errors after which going on would measure nothing.
const ERRORS_MAX: u64 = 1000;

/// Counts what is done between the end of the warm-up and the end of the measure. Times are nanoseconds since the start.
pub struct Recorder {
    start: Instant,
    from: u64,
    until: u64,
    records_max: Option<u64>,
    last: u64,
    latency: Histogram<u64>,
    requests: u64,
    records: u64,
    bytes: u64,
    /// Records of every good answer, from the first request to the last: what must be in the log afterwards.
    answered: u64,
    errors: u64,
    first_error: Option<String>,
    /// Requests that were due and never sent.
    pub unsent: u64,
    watch: Watch,
}

/// The CPU time of another process, at both ends of the measure.
#[derive(Default)]
struct Watch {
    pid: Option<u32>,
    begin_s: Option<f64>,
    end_s: Option<f64>,
}

impl Watch {
    fn look(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid?)).ok()?;
        // The name in brackets may hold anything; user and system time are the 12th and 13th field behind it.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut times = rest.split_whitespace().skip(11).map(str::parse::<f64>);
        let ticks = times.next()?.ok()? + times.next()?.ok()?;
        Some(ticks / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Recorder {
    pub fn new(warmup: f64, seconds: f64, records_max: Option<u64>) -> Recorder {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        Recorder {
            start: Instant::now(),
            from: ns(warmup),
            until: ns(warmup).saturating_add(ns(seconds)),
            records_max,
            last: 0,
            latency: Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("valid bounds"),
            requests: 0,
            records: 0,
            bytes: 0,
            answered: 0,
            errors: 0,
            first_error: None,
            unsent: 0,
            watch: Watch::default(),
        }
    }

    pub fn watch(mut self, pid: Option<u32>) -> Recorder {
        self.watch.pid = pid;
        self
    }

    /// To be called in every round.
    pub fn tick(&mut self, now: u64) {
        if self.watch.begin_s.is_none() && now >= self.from && self.watch.pid.is_some() {
            self.watch.begin_s = self.watch.look();
        }
    }

    /// The clock starts now: everything is connected and prepared.
    pub fn begin(&mut self) {
        self.start = Instant::now();
    }

    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn until(&self) -> u64 {
        self.until
    }

    /// Whether no more is to be asked.
    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until
            || self.records_max.is_some_and(|max| self.records >= max)
            || self.errors >= ERRORS_MAX
    }

    pub fn done(&mut self, begun: u64, now: u64, records: u64, bytes: u64) {
        self.answered += records;
        if now < self.from {
            return;
        }
        // Slow answers show up in the latencies also when they come after the end.
        self.latency
            .saturating_record(now.saturating_sub(begun).max(1));
        if !self.is_over(now) {
            self.last = now;
            self.requests += 1;
            self.records += records;
            self.bytes += bytes;
        }
    }

    /// The same for a request that brought nothing.
    pub fn idle(&mut self, now: u64) {
        if now >= self.from && now < self.until {
            self.requests += 1;
        }
    }

    /// The measure ends now, whatever it was to be.
    pub fn ended(&mut self, now: u64) {
        self.until = self.until.min(now);
        self.watch.end_s = self.watch.look();
    }

    pub fn failed(&mut self, what: String) {
        self.errors += 1;
        self.first_error.get_or_insert(what);
    }

    /// A request that was due and has no answer: its latency is at least this.
    pub fn unanswered(&mut self, begun: u64, now: u64) {
        self.latency
            .saturating_record(now.saturating_sub(begun).max(1));
    }

    pub fn report(self, what: String) -> Report {
        let end = match self.records_max {
            Some(_) => self.last,
            None => self.until.min(self.now()),
        };
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1000.0;
        Report {
            what,
            seconds: end.saturating_sub(self.from) as f64 / 1e9,
            requests: self.requests,
            records: self.records,
            bytes: self.bytes,
            answered: self.answered,
            latencies: self.latency.len(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.latency.max() as f64 / 1000.0,
            errors: self.errors,
            first_error: self.first_error,
            hint: None,
            unsent: self.unsent,
            watched_cpu_s: self
                .watch
                .end_s
                .zip(self.watch.begin_s)
                .map(|(end, begin)| end - begin),
            cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Report {
    pub what: String,
    pub seconds: f64,
    pub requests: u64,
    pub records: u64,
    /// Of batches as they are on the wire.
    pub bytes: u64,
    /// Records of every good answer, those of the warm-up and of the drain too.
    pub answered: u64,
    pub latencies: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// Why the figures are not what was wanted.
    pub hint: Option<&'static str>,
    pub unsent: u64,
    /// Of the process that was watched, between both ends of the measure.
    pub watched_cpu_s: Option<f64>,
    /// Of the whole life of this process.
    pub cpu_s: f64,
}

impl Report {
    fn rate(&self, amount: u64) -> f64 {
        match self.seconds > 0.0 {
            true => amount as f64 / self.seconds,
            false => 0.0,
        }
    }

    pub fn per_second(&self, amount: u64) -> u64 {
        self.rate(amount) as u64
    }

    pub fn to_json(&self) -> String {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        serde_json::json!({
            "what": self.what,
            "seconds": round(self.seconds),
            "requests": self.requests,
            "records": self.records,
            "bytes": self.bytes,
            "records_answered": self.answered,
            "requests_per_s": round(self.rate(self.requests)),
            "records_per_s": round(self.rate(self.records)),
            "mb_per_s": round(self.rate(self.bytes) / 1e6),
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "p999_us": self.p999_us,
            "max_us": self.max_us,
            "errors": self.errors,
            "first_error": self.first_error,
            "unsent": self.unsent,
            "watched_cpu_s": self.watched_cpu_s,
            "generator_cpu_s": round(self.cpu_s),
        })
        .to_string()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(
            f,
            "  {} records/s  {:.1} MB/s  {} requests/s  over {:.1} s",
            grouped(self.rate(self.records) as u64),
            self.rate(self.bytes) / 1e6,
            grouped(self.rate(self.requests) as u64),
            self.seconds,
        )?;
        if self.latencies > 0 {
            writeln!(
                f,
                "  latency  p50 {}  p99 {}  p99.9 {}  max {}",
                time(self.p50_us),
                time(self.p99_us),
                time(self.p999_us),
                time(self.max_us),
            )?;
        }
        if self.unsent > 0 {
            writeln!(
                f,
                "  {} requests were due and never sent: the broker did not keep up",
                grouped(self.unsent)
            )?;
        }
        if let Some(hint) = self.hint {
            writeln!(f, "  {hint}")?;
        }
        if let Some(error) = &self.first_error {
            writeln!(f, "  {} ERRORS, the first: {error}", grouped(self.errors))?;
        }
        if let Some(watched) = self.watched_cpu_s {
            writeln!(f, "  {watched:.2} s of CPU for the broker")?;
        }
        writeln!(f, "  {:.2} s of CPU for the generator", self.cpu_s)
    }
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds with three significant digits and a unit.
pub fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1e3),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn only_what_is_done_within_the_measure_counts() {
        let mut recorder = Recorder::new(1.0, 2.0, None);
        recorder.done(0, S - 1, 10, 100);
        recorder.done(S, S + 1000, 10, 100);
        recorder.done(S, S + 3000, 10, 100);
        recorder.done(3 * S - 1, 3 * S + 5000, 10, 100);
        assert!(!recorder.is_over(3 * S - 1) && recorder.is_over(3 * S));
        let report = recorder.report(String::new());
        assert_eq!(
            (report.requests, report.records, report.bytes),
            (2, 20, 200)
        );
        // The one that came late counts as slow.
        assert_eq!(report.latencies, 3);
        assert!((5.0..5.1).contains(&report.max_us), "{}", report.max_us);
    }

    #[test]
    fn so_many_records_end_the_measure() {
        let mut recorder = Recorder::new(0.0, f64::INFINITY, Some(20));
        recorder.done(0, S, 10, 1000);
        assert!(!recorder.is_over(S));
        recorder.done(0, 2 * S, 10, 1000);
        assert!(recorder.is_over(2 * S));
        recorder.done(0, 3 * S, 10, 1000);
        let report = recorder.report(String::new());
        assert_eq!((report.records, report.seconds), (20, 2.0));
        assert_eq!(report.rate(report.records), 10.0);
    }

    #[test]
    fn many_errors_end_the_measure_and_the_first_is_told() {
        let mut recorder = Recorder::new(0.0, 1.0, None);
        for i in 0..ERRORS_MAX {
            assert!(!recorder.is_over(0));
            recorder.failed(format!("error {i}"));
        }
        assert!(recorder.is_over(0));
        let report = recorder.report(String::new());
        assert_eq!(report.first_error.as_deref(), Some("error 0"));
    }

    #[test]
    fn a_watched_process_is_looked_at_at_both_ends() {
        let mut recorder = Recorder::new(1.0, 2.0, None).watch(Some(std::process::id()));
        recorder.tick(0);
        assert_eq!(recorder.watch.begin_s, None);
        recorder.tick(S);
        assert!(recorder.watch.begin_s.is_some());
        // Some ticks of CPU time.
        let begin = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let spent = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1_000_000
        };
        while spent() < 100 {}
        recorder.ended(3 * S);
        let watched = recorder.report(String::new()).watched_cpu_s;
        assert!(watched.is_some_and(|s| s >= 0.05), "{watched:?}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
        assert_eq!(time(9.994), "9.99 us");
        assert_eq!(time(12_340.0), "12.3 ms");
        assert_eq!(time(2_500_000.0), "2.50 s");
    }
}
