//! The controller's laws as transcripts: what is asked, what is answered, what the image says then.
//!
//! Codes and texts are those of Apache Kafka's controller, except where a machine is the unit of failure.

use std::sync::Arc;

use super::decide;
use crate::meta::{
    Command, Endpoint, Image, NewPartitions, NewTopic, OutcomeResult, ShardEndpoints, StaticConfig,
    TopicRef,
};
use crate::model::{NodeId, Rng, ShardIndex, TopicPartition, Uuid};

struct World {
    image: Image,
    rng: Rng,
}

impl World {
    fn new(settings: &[(&str, &str)]) -> World {
        let mut statics = StaticConfig::default();
        for (name, value) in settings {
            statics.set(name, value).unwrap();
        }
        World {
            image: Image::new(Arc::new(statics)),
            rng: Rng::seeded(1),
        }
    }

    /// One process with so many shards, registered.
    fn with_shards(shards: u16) -> World {
        let mut world = World::new(&[]);
        world.register(0, shards);
        world
    }

    fn run(&mut self, command: &Command) -> OutcomeResult {
        let (records, outcome) = decide(&self.image, command, &mut self.rng);
        for record in &records {
            self.image.apply(self.image.applied(), record);
            self.image.check();
        }
        assert_eq!(outcome.offset, self.image.applied(), "visible when applied");
        outcome.result
    }

    fn register(&mut self, process: i32, shards: u16) -> OutcomeResult {
        self.run(&Command::RegisterProcess {
            process,
            incarnation: Uuid([1; 16]),
            rack: None,
            shards: (0..shards)
                .map(|shard| ShardEndpoints {
                    shard: ShardIndex(shard),
                    endpoints: vec![Endpoint {
                        listener: "PLAINTEXT".into(),
                        host: "h".into(),
                        port: 9092 + shard,
                    }],
                })
                .collect(),
            cluster_id: None,
        })
    }

    /// One line for each topic: name, code and text or `ok partitions x replicas`.
    fn create_with(&mut self, topics: Vec<NewTopic>, validate_only: bool, auto: bool) -> String {
        let command = Command::CreateTopics {
            topics,
            validate_only,
            auto,
        };
        let OutcomeResult::CreateTopics(results) = self.run(&command) else {
            panic!("CreateTopics answers CreateTopics");
        };
        lines(results.iter().map(|t| match &t.error {
            None => format!("{}: ok {} x {}", t.name, t.partitions, t.replication_factor),
            Some(e) => format!("{}: {}", t.name, error(e)),
        }))
    }

    fn create(&mut self, topics: Vec<NewTopic>) -> String {
        self.create_with(topics, false, false)
    }

    fn delete(&mut self, topics: Vec<TopicRef>) -> String {
        let OutcomeResult::DeleteTopics(results) = self.run(&Command::DeleteTopics { topics })
        else {
            panic!("DeleteTopics answers DeleteTopics");
        };
        lines(results.iter().map(|t| {
            let name = t.name.as_deref().unwrap_or("-");
            match &t.error {
                None => format!("{name}: ok"),
                Some(e) => format!("{name}: {}", error(e)),
            }
        }))
    }

    fn grow(&mut self, topics: Vec<NewPartitions>, validate_only: bool) -> String {
        let command = Command::CreatePartitions {
            topics,
            validate_only,
        };
        let OutcomeResult::CreatePartitions(results) = self.run(&command) else {
            panic!("CreatePartitions answers CreatePartitions");
        };
        lines(results.iter().map(|(name, e)| match e {
            None => format!("{name}: ok"),
            Some(e) => format!("{name}: {}", error(e)),
        }))
    }

    /// Leaders and epochs of a topic's partitions, `leader/epoch`.
    fn leaders(&self, name: &str) -> String {
        let topic = self.image.topic_by_name(name).expect("exists");
        let show = topic
            .partitions
            .iter()
            .map(|p| format!("{}/{}", p.leader.0, p.leader_epoch));
        show.collect::<Vec<_>>().join(" ")
    }

    fn replicas(&self, name: &str) -> Vec<Vec<i32>> {
        let topic = self.image.topic_by_name(name).expect("exists");
        let numbers = |nodes: &[NodeId]| nodes.iter().map(|n| n.0).collect();
        topic
            .partitions
            .iter()
            .map(|p| numbers(&p.replicas))
            .collect()
    }
}

fn error(e: &crate::meta::ApiError) -> String {
    format!(
        "{} {}",
        e.code as i16,
        e.message.as_deref().unwrap_or("(null)")
    )
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

fn topic(name: &str, partitions: i32, factor: i16) -> NewTopic {
    NewTopic {
        partitions,
        replication_factor: factor,
        ..NewTopic::named(name)
    }
}

fn with(name: &str, configs: &[(&str, Option<&str>)]) -> NewTopic {
    NewTopic {
        configs: configs
            .iter()
            .map(|(k, v)| (k.to_string(), v.map(str::to_string)))
            .collect(),
        ..NewTopic::named(name)
    }
}

fn by_hand(name: &str, assignments: &[(i32, &[i32])]) -> NewTopic {
    NewTopic {
        assignments: assignments
            .iter()
            .map(|(p, nodes)| (*p, nodes.iter().map(|n| NodeId(*n)).collect()))
            .collect(),
        ..NewTopic::named(name)
    }
}

fn named(name: &str) -> TopicRef {
    TopicRef {
        name: Some(name.to_string()),
        id: Uuid::ZERO,
    }
}

fn count(name: &str, count: i32) -> NewPartitions {
    NewPartitions {
        name: name.to_string(),
        count,
        assignments: None,
    }
}

#[test]
fn minus_one_means_the_broker_default() {
    let mut world = World::new(&[("num.partitions", "3")]);
    world.register(0, 2);
    assert_eq!(world.create(vec![NewTopic::named("t")]), "t: ok 3 x 1");
    assert_eq!(world.leaders("t"), "0/0 1/0 0/0");
}

#[test]
fn names_follow_kafkas_rules() {
    let long = "x".repeat(250);
    let mut world = World::with_shards(1);
    assert_eq!(
        world.create(vec![
            topic("", 1, 1),
            topic(".", 1, 1),
            topic("..", 1, 1),
            topic("a b", 1, 1),
            topic("\u{fffd}", 1, 1),
            topic(&"x".repeat(249), 1, 1)
        ]),
        format!(
            "{}\n{}\n{}\n{}\n{}\n{}: ok 1 x 1",
            ": 17 Topic name is invalid: the empty string is not allowed",
            ".: 17 Topic name is invalid: '.' is not allowed",
            "..: 17 Topic name is invalid: '..' is not allowed",
            "a b: 17 Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
            "\u{fffd}: 17 Topic name is invalid: '\u{fffd}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
            "x".repeat(249)
        )
    );
    assert_eq!(
        world.create(vec![topic(&long, 1, 1)]),
        format!(
            "{long}: 17 Topic name is invalid: the length of '{long}' is longer than the max allowed length 249"
        )
    );
    assert_eq!(
        world.create(vec![topic("__cluster_metadata", 1, 1)]),
        "__cluster_metadata: 29 (null)"
    );
}

#[test]
fn dots_and_underscores_collide() {
    let mut world = World::with_shards(1);
    assert_eq!(
        world.create(vec![topic("a.b_c", 1, 1), topic("a_b.c", 1, 1)]),
        "a.b_c: ok 1 x 1\na_b.c: 17 Topic 'a_b.c' collides with existing topic: a.b_c"
    );
    assert_eq!(
        world.create(vec![topic("a_b_c", 1, 1)]),
        "a_b_c: 17 Topic 'a_b_c' collides with existing topic: a.b_c"
    );
    assert_eq!(world.delete(vec![named("a.b_c")]), "a.b_c: ok");
    assert_eq!(world.create(vec![topic("a_b_c", 1, 1)]), "a_b_c: ok 1 x 1");
}

#[test]
fn an_existing_name_is_refused_also_when_only_asked() {
    let mut world = World::with_shards(1);
    assert_eq!(world.create(vec![topic("t", 1, 1)]), "t: ok 1 x 1");
    for validate_only in [false, true] {
        assert_eq!(
            world.create_with(vec![topic("t", 9, 9)], validate_only, false),
            "t: 36 Topic 't' already exists."
        );
    }
    // Auto creation by two clients at once: the second finds it.
    assert_eq!(
        world.create_with(vec![NewTopic::named("t")], false, true),
        "t: ok 1 x 1"
    );
}

#[test]
fn validate_only_changes_nothing() {
    let mut world = World::with_shards(1);
    let before = world.image.snapshot();
    assert_eq!(
        world.create_with(vec![topic("t", 2, 1)], true, false),
        "t: ok 2 x 1"
    );
    assert_eq!(world.image.snapshot(), before);
    world.create(vec![topic("t", 3, 1)]);
    assert_eq!(world.grow(vec![count("t", 6)], true), "t: ok");
    assert_eq!(world.leaders("t"), "0/0 0/0 0/0");
}

#[test]
fn a_name_twice_in_one_request_is_one_error() {
    let mut world = World::with_shards(1);
    assert_eq!(
        world.create(vec![topic("t", 1, 1), topic("u", 1, 1), topic("t", 1, 1)]),
        "u: ok 1 x 1\nt: 42 Duplicate topic name."
    );
    assert_eq!(
        world.grow(vec![count("u", 2), count("u", 3)], false),
        "u: 42 Duplicate topic name."
    );
}

#[test]
fn counts_and_factors_out_of_range_are_refused() {
    let mut world = World::with_shards(4);
    assert_eq!(
        world.create(vec![
            topic("a", 0, 1),
            topic("b", -2, 1),
            topic("c", 1, 0),
            topic("d", 1, -2)
        ]),
        "a: 37 Number of partitions was set to an invalid non-positive value.\n\
         b: 37 Number of partitions was set to an invalid non-positive value.\n\
         c: 38 Replication factor must be larger than 0, or -1 to use the default value.\n\
         d: 38 Replication factor must be larger than 0, or -1 to use the default value."
    );
    // Kafka names brokers; here machines count, and the text says both.
    assert_eq!(
        world.create(vec![topic("t", 1, 2)]),
        "t: 38 Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because \
         only 1 machine(s) with 4 node(s) in all are registered, and the replicas of a partition never share a machine."
    );
    assert_eq!(
        world.create(vec![topic("big", 10_000, 1), topic("one", 1, 1)]),
        "big: 44 Excessively large number of partitions per request.\n\
         one: 44 Excessively large number of partitions per request."
    );
    assert_eq!(
        world.create(vec![topic("big", 10_000, 1)]),
        "big: ok 10000 x 1"
    );
}

#[test]
fn configs_are_checked_in_kafkas_words_and_nothing_is_created() {
    let mut world = World::with_shards(1);
    assert_eq!(
        world.create(vec![
            with("a", &[("retention.ms", None), ("x", None)]),
            with("b", &[("retention.mss", Some("1"))]),
            with("c", &[("segment.bytes", Some("abc"))]),
            with("d", &[("min.insync.replicas", Some("0"))]),
            with("e", &[("cleanup.policy", Some("compact,foo"))]),
        ]),
        "a: 40 Null value not supported for topic configs: retention.ms,x\n\
         b: 40 Unknown topic config name: retention.mss\n\
         c: 40 Invalid value abc for configuration segment.bytes: Not a number of type INT\n\
         d: 40 Invalid value 0 for configuration min.insync.replicas: Value must be at least 1\n\
         e: 40 Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete"
    );
    assert_eq!(world.image.topic_count(), 0);
    assert_eq!(
        world.create(vec![with("t", &[("retention.ms", Some("5"))])]),
        "t: ok 1 x 1"
    );
    assert_eq!(
        world.image.topic_by_name("t").unwrap().config.retention_ms,
        5
    );
}

#[test]
fn assignments_by_hand_are_checked() {
    let mut world = World::with_shards(2);
    world.register(1, 2);
    let both = |mut topic: NewTopic, partitions, factor| {
        topic.partitions = partitions;
        topic.replication_factor = factor;
        topic
    };
    assert_eq!(
        world.create(vec![
            both(by_hand("a", &[(0, &[0])]), -1, 1),
            both(by_hand("b", &[(0, &[0])]), 1, -1),
            by_hand("c", &[(0, &[])]),
            by_hand("d", &[(0, &[7])]),
            by_hand("e", &[(0, &[0, 0])]),
            by_hand("f", &[(0, &[0]), (1, &[0, 1000])]),
            by_hand("g", &[(0, &[0]), (2, &[0])]),
            by_hand("h", &[(0, &[0]), (0, &[1])]),
            by_hand("i", &[(0, &[1, 0])]),
            by_hand("j", &[(1, &[1001, 0]), (0, &[1, 1000])]),
        ]),
        "a: 42 A manual partition assignment was specified, but replication factor was not set to -1.\n\
         b: 42 A manual partition assignment was specified, but numPartitions was not set to -1.\n\
         c: 39 The manual partition assignment includes an empty replica list.\n\
         d: 39 The manual partition assignment includes broker 7, but no such broker is registered.\n\
         e: 39 The manual partition assignment includes the broker 0 more than once.\n\
         f: 39 The manual partition assignment includes a partition with 2 replica(s), but this is not consistent with previous partitions, which have 1 replica(s).\n\
         g: 39 partitions should be a consecutive 0-based integer sequence\n\
         h: 39 Found multiple manual partition assignments for partition 0\n\
         i: 39 The manual partition assignment includes the brokers 0 and 1, which are on the same machine.\n\
         j: ok 2 x 2"
    );
    assert_eq!(world.replicas("j"), [[1, 1000], [1001, 0]]);
}

#[test]
fn partitions_spread_over_shards_and_topics_start_on_the_least_loaded() {
    let mut world = World::with_shards(3);
    world.create(vec![topic("a", 1, 1), topic("b", 1, 1), topic("c", 4, 1)]);
    assert_eq!(world.leaders("a"), "0/0");
    assert_eq!(world.leaders("b"), "1/0");
    assert_eq!(world.leaders("c"), "2/0 0/0 1/0 2/0");
    // A topic that grows fills up its own gaps first.
    assert_eq!(world.grow(vec![count("a", 3)], false), "a: ok");
    assert_eq!(world.leaders("a"), "0/0 1/0 2/0");
}

#[test]
fn replicas_never_share_a_machine_and_all_machines_get_the_same() {
    let mut world = World::with_shards(2);
    world.register(1, 2);
    world.register(2, 2);
    world.create(vec![topic("t", 12, 2)]);
    let mut leads = std::collections::BTreeMap::new();
    let mut holds = std::collections::BTreeMap::new();
    for replicas in world.replicas("t") {
        assert_ne!(replicas[0] / 1000, replicas[1] / 1000);
        *leads.entry(replicas[0]).or_insert(0) += 1;
        for node in replicas {
            *holds.entry(node / 1000).or_insert(0) += 1;
        }
    }
    assert_eq!(leads.into_values().collect::<Vec<_>>(), [2; 6]);
    assert_eq!(holds.into_values().collect::<Vec<_>>(), [8; 3]);
}

#[test]
fn topics_are_deleted_by_name_or_id_but_not_by_both() {
    let mut world = World::with_shards(1);
    world.create(vec![topic("a", 1, 1), topic("b", 1, 1), topic("c", 1, 1)]);
    let id = |world: &World, name: &str| TopicRef {
        name: None,
        id: world.image.topic_id(name).unwrap(),
    };
    let a = id(&world, "a");
    assert_eq!(
        world.delete(vec![
            a.clone(),
            named("a"),
            named("b"),
            named("b"),
            named("nope"),
            TopicRef {
                name: None,
                id: Uuid([9; 16])
            },
            TopicRef {
                name: None,
                id: Uuid::ZERO
            },
            TopicRef {
                name: Some("c".into()),
                id: a.id
            },
            named("c"),
        ]),
        "-: 42 Neither topic name nor id were specified.\n\
         c: 42 You may not specify both topic name and topic id.\n\
         -: 100 This server does not host this topic ID.\n\
         a: 42 The provided topic name maps to an ID that was already supplied.\n\
         b: 42 Duplicate topic name.\n\
         nope: 3 This server does not host this topic-partition.\n\
         a: ok\n\
         c: ok"
    );
    let b = id(&world, "b");
    assert_eq!(world.delete(vec![b]), "b: ok");
    let mut strict = World::new(&[("delete.topic.enable", "false")]);
    assert_eq!(
        strict.delete(vec![named("x")]),
        "x: 73 Topic deletion is disabled."
    );
}

#[test]
fn a_topic_made_again_has_another_id() {
    let mut world = World::with_shards(1);
    world.create(vec![topic("t", 1, 1)]);
    let first = world.image.topic_id("t").unwrap();
    world.delete(vec![named("t")]);
    world.create(vec![topic("t", 1, 1)]);
    let second = world.image.topic_id("t").unwrap();
    assert_ne!(first, second);
    assert!(!second.to_string().starts_with('-'));
}

#[test]
fn partitions_only_grow() {
    let mut world = World::with_shards(1);
    world.create(vec![topic("t", 3, 1)]);
    let grow = |world: &mut World, n| world.grow(vec![count("t", n)], false);
    assert_eq!(
        grow(&mut world, 3),
        "t: 37 Topic already has 3 partition(s)."
    );
    for n in [2, 0, -1] {
        assert_eq!(
            grow(&mut world, n),
            format!(
                "t: 37 The topic t currently has 3 partition(s); {n} would not be an increase."
            )
        );
    }
    assert_eq!(world.grow(vec![count("nope", 3)], false), "nope: 3 (null)");
    let by_hand = |assignments: &[&[i32]]| NewPartitions {
        assignments: Some(
            assignments
                .iter()
                .map(|a| a.iter().map(|n| NodeId(*n)).collect())
                .collect(),
        ),
        ..count("t", 5)
    };
    assert_eq!(
        world.grow(vec![by_hand(&[&[0]])], false),
        "t: 39 Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."
    );
    assert_eq!(world.grow(vec![by_hand(&[&[0], &[0]])], false), "t: ok");
    assert_eq!(world.replicas("t").len(), 5);
    assert_eq!(
        world.grow(vec![count("t", 10_001)], false),
        "t: 44 Excessively large number of partitions per request."
    );
}

#[test]
fn producer_id_blocks_never_overlap() {
    let mut world = World::with_shards(2);
    let mut block = |node| match world.run(&Command::AllocateProducerIds { node: NodeId(node) }) {
        OutcomeResult::ProducerIds(block) => format!("{} + {}", block.first, block.len),
        OutcomeResult::Failed(e) => error(&e),
        other => panic!("{other:?}"),
    };
    assert_eq!(block(0), "0 + 1000");
    assert_eq!(block(1), "1000 + 1000");
    assert_eq!(block(0), "2000 + 1000");
    assert_eq!(block(2), "102 No such node is registered.");
}

#[test]
fn a_restart_raises_leader_epochs_and_fewer_shards_take_over_what_is_left() {
    let mut world = World::with_shards(4);
    world.create(vec![topic("t", 4, 1)]);
    assert_eq!(world.leaders("t"), "0/0 1/0 2/0 3/0");
    world.register(0, 4);
    assert_eq!(world.leaders("t"), "0/1 1/1 2/1 3/1");
    // Shards 3 goes to 3 % 3; its epoch is raised by the registration and by the move.
    world.register(0, 3);
    assert_eq!(world.leaders("t"), "0/2 1/2 2/2 0/3");
    world.register(0, 8);
    assert_eq!(world.leaders("t"), "0/3 1/3 2/3 0/4");
    let tp = TopicPartition {
        topic: world.image.topic_id("t").unwrap(),
        partition: 3,
    };
    let moved = world.image.partition(tp).unwrap();
    assert_eq!(
        (moved.replicas.clone(), moved.isr.clone()),
        (vec![NodeId(0)], vec![NodeId(0)])
    );
}

#[test]
fn the_first_registration_makes_the_cluster_and_another_cluster_is_refused() {
    let mut world = World::with_shards(1);
    let id = world.image.cluster_id();
    assert!(!id.is_zero());
    let mut register = |cluster_id, process, shards: u16| {
        let result = world.run(&Command::RegisterProcess {
            process,
            incarnation: Uuid([2; 16]),
            rack: None,
            shards: (0..shards)
                .map(|shard| ShardEndpoints {
                    shard: ShardIndex(shard),
                    endpoints: Vec::new(),
                })
                .collect(),
            cluster_id,
        });
        match result {
            OutcomeResult::Registered => "ok".to_string(),
            OutcomeResult::Failed(e) => error(&e),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(register(Some(id), 0, 1), "ok");
    let other = Uuid([5; 16]);
    assert_eq!(
        register(Some(other), 0, 1),
        format!("104 The cluster's id is {id}, but this process belongs to {other}.")
    );
    assert_eq!(
        register(None, -1, 1),
        "119 Process number -1 is not between 0 and 2147482."
    );
    assert_eq!(
        register(None, 0, 0),
        "119 A process has 1 to 999 shards, not 0."
    );
}

#[test]
fn internal_topics_take_what_the_broker_configs_say_within_the_machines() {
    let mut world = World::new(&[("offsets.topic.num.partitions", "5")]);
    world.register(0, 2);
    let auto = |name: &str| vec![NewTopic::named(name)];
    assert_eq!(
        world.create_with(auto("__consumer_offsets"), false, true),
        "__consumer_offsets: ok 5 x 1"
    );
    let topic = world.image.topic_by_name("__consumer_offsets").unwrap();
    assert!(topic.config.cleanup_policy.compact && !topic.config.cleanup_policy.delete);
    assert_eq!(topic.config.segment_bytes, 104_857_600);
    world.register(1, 2);
    assert_eq!(
        world.create_with(auto("__transaction_state"), false, true),
        "__transaction_state: ok 50 x 2"
    );
    let topic = world.image.topic_by_name("__transaction_state").unwrap();
    assert_eq!(topic.min_insync_replicas(&topic.partitions[0]), 2);
}
