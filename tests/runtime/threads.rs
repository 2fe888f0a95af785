//! When the broker's threads run, and when they do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::broker::{Broker, TestDir, ask, cpu_time, metadata, voluntary_switches};

fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// One busy loop on every CPU, until dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    loops: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start() -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |cpu: usize| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut set = CpuSet::new();
                set.set(cpu);
                sched_setaffinity(None, &set).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let loops = cpus().into_iter().map(spin).collect();
        Busy { stop, loops }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for each in self.loops.drain(..) {
            each.join().unwrap();
        }
    }
}

#[test]
fn no_shard_stalls_beside_busy_loops() {
    let dir = TestDir::new("busy");
    let broker = Broker::start(&dir.0, &["shards=2"]);
    broker.create_topic("t", 2);
    let mut streams = [broker.connect(0), broker.connect(1)];
    let mut worst = Duration::ZERO;
    let _busy = Busy::start();
    // Apart, so that each request finds its shard asleep.
    for number in 0..600 {
        let since = Instant::now();
        assert_eq!(
            ask(&mut streams[number as usize % 2], &metadata(number)).0,
            number
        );
        worst = worst.max(since.elapsed());
        pause(Duration::from_millis(4));
    }
    println!("the slowest answer beside busy loops took {worst:?}");
    // What the kernel's scheduler and other tests take. A wake-up that is lost would never be answered.
    assert!(worst < Duration::from_millis(500), "{worst:?}");
    // Topics are made through messages between the shards, each of which may find the other asleep.
    for number in 0..50 {
        let since = Instant::now();
        broker.create_topic(&format!("made-{number}"), 2);
        assert!(since.elapsed() < Duration::from_secs(5));
        pause(Duration::from_millis(3));
    }
    broker.stop();
}

#[test]
fn an_idle_process_wakes_less_than_ten_times_a_second_per_core() {
    let dir = TestDir::new("idle-cpu");
    let shards = 2;
    let broker = Broker::start(&dir.0, &["shards=2"]);
    broker.create_topic("t", 8);
    broker.produce("t", 8, 0..100, 100);
    let mut idle = broker.connect(0);
    ask(&mut idle, &metadata(1));
    // What the work left behind (a flush a second after it, the kernel's workers) is not idleness.
    pause(Duration::from_secs(3));
    let (switches, cpu) = (voluntary_switches(broker.pid()), cpu_time(broker.pid()));
    let seconds = 4;
    pause(Duration::from_secs(seconds));
    let switches = voluntary_switches(broker.pid()).saturating_sub(switches);
    let cpu = cpu_time(broker.pid()) - cpu;
    println!("idle for {seconds} s: {switches} wake-ups, {cpu:?} of CPU");
    assert!(switches < 10 * seconds * shards, "{switches}");
    assert!(cpu < Duration::from_millis(100), "{cpu:?}");
    broker.stop();
}
