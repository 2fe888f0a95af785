//! Which topics there are, as far as clients were told: names, their ids, and what was asked about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::meta::Image;
use crate::model::TopicId;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Existence {
    /// It never was, or its deletion was answered.
    #[default]
    Absent,
    /// Somebody asked for it, and does not know more.
    Creating,
    Exists,
    /// Somebody asked for its end, and does not know more.
    Deleting,
}

#[derive(Default)]
struct Topic {
    state: Existence,
    /// Of the topic that exists or is being deleted, once somebody was told.
    id: Option<TopicId>,
    /// Counts whatever was asked or answered about its being there.
    changes: u64,
    /// The answer said that every shard knows: a first success, not a repetition that found its work done.
    everywhere: bool,
    /// At least so many partitions; an answer said so.
    partitions: usize,
    configs: Vec<(&'static str, String)>,
    /// Somebody asked for other configs, and does not know more.
    altering: bool,
}

/// What was known of a name when a request left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    changes: u64,
    life: u64,
    partitions: usize,
}

#[derive(Default)]
pub(super) struct Topics {
    by_name: BTreeMap<String, Topic>,
    names: BTreeMap<TopicId, String>,
    gone: BTreeSet<TopicId>,
    life: u64,
}

impl Topics {
    // -- what was asked and answered

    pub fn creating(&mut self, name: &str, configs: &[(&'static str, String)]) {
        let topic = self.change(name);
        if topic.state != Existence::Exists {
            topic.state = Existence::Creating;
            topic.partitions = 0;
            topic.configs = configs.to_vec();
            topic.altering = false;
        }
    }

    pub fn altering(&mut self, name: &str) {
        self.change(name).altering = true;
    }

    /// A success: every shard has it.
    pub fn altered(&mut self, name: &str, key: &'static str, value: &str) {
        let topic = self.change(name);
        topic.altering = false;
        topic.configs.retain(|(known, _)| *known != key);
        topic.configs.push((key, value.to_string()));
        topic.configs.sort_unstable();
    }

    /// `first`: this very request made it, and every shard has it.
    pub fn created(&mut self, name: &str, id: TopicId, partitions: usize, first: bool) {
        let topic = self.change(name);
        topic.state = Existence::Exists;
        topic.everywhere = first;
        topic.partitions = if first { partitions } else { 1 };
        topic.id = None;
        if !id.is_zero() {
            topic.id = Some(id);
            self.names.insert(id, name.to_string());
        }
    }

    pub fn deleting(&mut self, name: &str) {
        self.change(name).state = Existence::Deleting;
    }

    pub fn deleted(&mut self, name: &str, first: bool) {
        let topic = self.change(name);
        topic.state = Existence::Absent;
        topic.everywhere = first;
        let id = topic.id.take();
        // Some shard may not know yet when only a repetition was answered.
        if first {
            self.gone.extend(id);
        }
    }

    pub fn grown(&mut self, name: &str, partitions: usize) {
        let topic = self.by_name.entry(name.to_string()).or_default();
        topic.partitions = topic.partitions.max(partitions);
    }

    fn change(&mut self, name: &str) -> &mut Topic {
        let topic = self.by_name.entry(name.to_string()).or_default();
        topic.changes += 1;
        topic
    }

    /// The process starts again: every shard reads the same image.
    pub fn started(&mut self) {
        self.life += 1;
        for topic in self.by_name.values_mut() {
            topic.everywhere |= matches!(topic.state, Existence::Exists | Existence::Absent);
        }
    }

    // -- what may be shown

    pub fn asked(&self, name: &str) -> Asked {
        let topic = self.by_name.get(name);
        Asked {
            changes: topic.map_or(0, |topic| topic.changes),
            life: self.life,
            partitions: topic.map_or(0, |topic| topic.partitions),
        }
    }

    /// What every shard must have known of the name all the time since then; nothing when it changed.
    fn since(&self, name: &str, asked: Asked) -> Option<&Topic> {
        let topic = self.by_name.get(name)?;
        let same = topic.changes == asked.changes && self.life == asked.life;
        (same && topic.everywhere).then_some(topic)
    }

    /// Whether the name was that of this topic from then on until now.
    pub fn is_surely(&self, name: &str, id: TopicId, asked: Asked) -> bool {
        self.by_name.get(name).is_some_and(|topic| {
            topic.changes == asked.changes
                && topic.everywhere
                && topic.state == Existence::Exists
                && topic.id == Some(id)
        })
    }

    /// A shard says that a topic of this name is there, or (`None`) is not. Gives what is wrong with that.
    pub fn shown(
        &mut self,
        name: &str,
        shown: Option<(TopicId, usize)>,
        asked: Asked,
    ) -> Result<(), String> {
        let Some(topic) = self.since(name, asked) else {
            return Ok(());
        };
        match (topic.state, shown) {
            (Existence::Exists, None) => {
                Err(format!("topic {name} exists and a shard does not know it"))
            }
            (Existence::Absent, Some((id, _))) => {
                Err(format!("topic {name} {id} is deleted and a shard shows it"))
            }
            (Existence::Exists, Some((id, partitions))) => {
                if topic.id.is_some_and(|known| known != id) && !id.is_zero() {
                    return Err(format!(
                        "topic {name} has id {id} after {} although nobody deleted it",
                        topic.id.unwrap_or_default()
                    ));
                }
                if partitions < asked.partitions {
                    return Err(format!(
                        "topic {name} is shown with {partitions} partitions and has {}",
                        asked.partitions
                    ));
                }
                if topic.id.is_none() && !id.is_zero() {
                    self.names.insert(id, name.to_string());
                    let topic = self.by_name.get_mut(name).expect("looked up above");
                    topic.id = Some(id);
                }
                Ok(())
            }
            (Existence::Absent, None) | (Existence::Creating | Existence::Deleting, _) => Ok(()),
        }
    }

    /// Some answer gave this id to the name.
    pub fn named(&mut self, name: &str, id: TopicId) {
        self.names.insert(id, name.to_string());
    }

    /// The configs that a topic was created with, if it surely is that topic.
    pub fn configs(&self, name: &str, asked: Asked) -> Option<&[(&'static str, String)]> {
        let topic = self.since(name, asked)?;
        (topic.state == Existence::Exists && !topic.altering).then_some(&topic.configs)
    }

    pub fn exists_everywhere(&self, name: &str, asked: Asked) -> bool {
        self.since(name, asked)
            .is_some_and(|topic| topic.state == Existence::Exists)
    }

    /// Its deletion was answered.
    pub fn is_gone(&self, id: TopicId) -> bool {
        self.gone.contains(&id)
    }

    pub fn same_name(&self, one: TopicId, other: TopicId) -> bool {
        let name = self.names.get(&one);
        name.is_some() && name == self.names.get(&other)
    }

    /// What is wrong with the image that a start of the process reads.
    pub fn check(&self, image: &Image) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, topic) in &self.by_name {
            let found = image.topic_by_name(name);
            match topic.state {
                Existence::Exists => match found {
                    None => wrong.push(format!("topic {name} is not there after a start")),
                    Some(found) if topic.id.is_some_and(|id| id != found.id) => wrong.push(
                        format!("topic {name} has another id after a start: {}", found.id),
                    ),
                    Some(found) if found.partitions.len() < topic.partitions => {
                        wrong.push(format!(
                            "topic {name} has {} of {} partitions after a start",
                            found.partitions.len(),
                            topic.partitions
                        ))
                    }
                    Some(_) => {}
                },
                Existence::Absent if found.is_some() => {
                    wrong.push(format!("topic {name} is back after a start"));
                }
                Existence::Absent | Existence::Creating | Existence::Deleting => {}
            }
        }
        let back = self.gone.iter().filter(|id| image.topic(**id).is_some());
        wrong.extend(back.map(|id| format!("deleted topic {id} is back after a start")));
        wrong
    }
}
