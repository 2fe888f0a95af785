//! Incremental fetch sessions (KIP-227): the client names a partition once, and later only what changed.
//!
//! A session may be used from any connection. A full cache evicts the least recently used session that was idle for
//! [`SESSION_IDLE_EVICT_US`]; when there is none the client gets session id 0 and goes on with full requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::limit::SESSION_IDLE_EVICT_US;
use crate::model::{ErrorCode, Instant, Rng, TopicId};

/// A topic as the request's version names it: up to 12 by name, from 13 by id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TopicRef {
    Name(Arc<str>),
    Id(TopicId),
}

/// What a client wants of one partition.
#[derive(Clone, PartialEq, Debug)]
pub struct FetchItem {
    pub topic: TopicRef,
    pub partition: i32,
    pub fetch_offset: i64,
    pub bytes_max: i32,
    /// -1: the client does not say.
    pub current_leader_epoch: i32,
    /// -1: the client does not say.
    pub last_fetched_epoch: i32,
}

/// What the last answer of a session said about a partition; a partition is named again only when it changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Told {
    high_watermark: i64,
    log_start: i64,
}

const NOTHING_TOLD: Told = Told {
    high_watermark: -1,
    log_start: -1,
};

#[derive(Debug)]
struct Session {
    next_epoch: i32,
    by_id: bool,
    used: Instant,
    /// Order of answering: partitions that returned data move to the end.
    order: BTreeMap<u64, (FetchItem, Told)>,
    places: BTreeMap<(TopicRef, i32), u64>,
    next_place: u64,
}

impl Session {
    fn new(by_id: bool, used: Instant) -> Session {
        Session {
            next_epoch: 1,
            by_id,
            used,
            order: BTreeMap::new(),
            places: BTreeMap::new(),
            next_place: 0,
        }
    }

    fn put(&mut self, item: FetchItem) {
        let key = (item.topic.clone(), item.partition);
        if let Some(place) = self.places.get(&key) {
            let (old, _) = self.order.get_mut(place).expect("places and order agree");
            *old = item;
        } else {
            self.places.insert(key, self.next_place);
            self.order.insert(self.next_place, (item, NOTHING_TOLD));
            self.next_place += 1;
        }
    }

    fn forget(&mut self, key: &(TopicRef, i32)) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    fn move_to_end(&mut self, key: &(TopicRef, i32)) {
        let place = self
            .places
            .get_mut(key)
            .expect("the partition is in the session");
        let entry = self.order.remove(place).expect("places and order agree");
        *place = self.next_place;
        self.order.insert(self.next_place, entry);
        self.next_place += 1;
    }
}

/// How the answer to a fetch relates to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionUse {
    /// Every partition is answered; session id 0.
    None,
    /// Every partition is answered; the client may go on with this session.
    New(i32),
    /// Only what changed is answered.
    Incremental(i32),
}

impl SessionUse {
    /// The id that the answer carries.
    pub fn id(self) -> i32 {
        match self {
            SessionUse::None => 0,
            SessionUse::New(id) | SessionUse::Incremental(id) => id,
        }
    }
}

#[derive(Debug)]
pub struct Sessions {
    /// `max.incremental.fetch.session.cache.slots`.
    slots: usize,
    sessions: BTreeMap<i32, Session>,
    by_use: BTreeSet<(Instant, i32)>,
}

impl Sessions {
    pub fn new(slots: usize) -> Sessions {
        Sessions {
            slots,
            sessions: BTreeMap::new(),
            by_use: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Finds out what a request asks for: the session it uses and the partitions to answer, in order.
    /// `items` are the partitions that the request names, `forgotten` those it takes out of the session.
    #[allow(clippy::too_many_arguments)]
    pub fn begin(
        &mut self,
        id: i32,
        epoch: i32,
        by_id: bool,
        items: Vec<FetchItem>,
        forgotten: &[(TopicRef, i32)],
        now: Instant,
        rng: &mut Rng,
    ) -> Result<(SessionUse, Vec<FetchItem>), ErrorCode> {
        if epoch <= 0 {
            if id != 0 {
                self.remove(id);
            }
            if epoch < 0 || items.is_empty() {
                return Ok((SessionUse::None, items));
            }
            return Ok((self.make(by_id, &items, now, rng), items));
        }
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.next_epoch != epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        for item in items {
            session.put(item);
        }
        for key in forgotten {
            session.forget(key);
        }
        session.next_epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        self.by_use.remove(&(session.used, id));
        session.used = now;
        if session.order.is_empty() {
            self.sessions.remove(&id);
            return Ok((SessionUse::None, Vec::new()));
        }
        self.by_use.insert((now, id));
        Ok((
            SessionUse::Incremental(id),
            session
                .order
                .values()
                .map(|(item, _)| item.clone())
                .collect(),
        ))
    }

    fn make(
        &mut self,
        by_id: bool,
        items: &[FetchItem],
        now: Instant,
        rng: &mut Rng,
    ) -> SessionUse {
        if self.sessions.len() >= self.slots {
            match self.by_use.first().copied() {
                Some((used, oldest)) if now.since_us(used) >= SESSION_IDLE_EVICT_US => {
                    self.remove(oldest)
                }
                _ => return SessionUse::None,
            }
        }
        let id = loop {
            let id = rng.range(1, i32::MAX as u64) as i32;
            if !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let mut session = Session::new(by_id, now);
        for item in items {
            session.put(item.clone());
        }
        self.sessions.insert(id, session);
        self.by_use.insert((now, id));
        SessionUse::New(id)
    }

    fn remove(&mut self, id: i32) {
        if let Some(session) = self.sessions.remove(&id) {
            self.by_use.remove(&(session.used, id));
        }
    }

    /// Whether the answer must name this partition, and notes what it says. A full answer names all.
    pub fn tell(
        &mut self,
        session: SessionUse,
        item: &FetchItem,
        high_watermark: i64,
        log_start: i64,
        has_data: bool,
        must: bool,
    ) -> bool {
        let (id, incremental) = match session {
            SessionUse::None => return true,
            SessionUse::New(id) => (id, false),
            SessionUse::Incremental(id) => (id, true),
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return true;
        };
        let key = (item.topic.clone(), item.partition);
        let Some(place) = session.places.get(&key) else {
            return true;
        };
        let (_, told) = session
            .order
            .get_mut(place)
            .expect("places and order agree");
        let says = Told {
            high_watermark,
            log_start,
        };
        let changed = *told != says;
        // After an error the high watermark is sent anew, whatever it is.
        *told = if must {
            Told {
                high_watermark: -1,
                ..says
            }
        } else {
            says
        };
        if has_data {
            session.move_to_end(&key);
        }
        !incremental || changed || has_data || must
    }

    pub fn check(&self) {
        assert_eq!(self.sessions.len(), self.by_use.len());
        for (id, session) in &self.sessions {
            assert!(self.by_use.contains(&(session.used, *id)));
            assert_eq!(session.order.len(), session.places.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(partition: i32, fetch_offset: i64) -> FetchItem {
        let topic = TopicRef::Name("t".into());
        FetchItem {
            topic,
            partition,
            fetch_offset,
            bytes_max: 1,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
        }
    }

    const SLOTS: usize = 100;

    struct World {
        sessions: Sessions,
        rng: Rng,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            World {
                sessions: Sessions::new(SLOTS),
                rng: Rng::seeded(1),
                now: Instant(1),
            }
        }

        fn begin(
            &mut self,
            id: i32,
            epoch: i32,
            items: Vec<FetchItem>,
        ) -> Result<(SessionUse, Vec<FetchItem>), ErrorCode> {
            let begun = self
                .sessions
                .begin(id, epoch, false, items, &[], self.now, &mut self.rng);
            self.sessions.check();
            begun
        }
    }

    #[test]
    fn incremental_fetch_names_only_what_changed() {
        let mut world = World::new();
        let (session, items) = world.begin(0, 0, vec![item(0, 5), item(1, 7)]).unwrap();
        let SessionUse::New(id) = session else {
            panic!("a session was asked for")
        };
        assert_eq!(items.len(), 2);
        assert!(world.sessions.tell(session, &items[0], 10, 0, false, false));
        assert!(world.sessions.tell(session, &items[1], 20, 0, false, false));

        let (session, items) = world.begin(id, 1, vec![item(1, 8)]).unwrap();
        assert_eq!(session, SessionUse::Incremental(id));
        assert_eq!(
            items
                .iter()
                .map(|i| (i.partition, i.fetch_offset))
                .collect::<Vec<_>>(),
            [(0, 5), (1, 8)]
        );
        assert!(
            !world.sessions.tell(session, &items[0], 10, 0, false, false),
            "nothing changed"
        );
        assert!(
            world.sessions.tell(session, &items[1], 21, 0, false, false),
            "the high watermark moved"
        );
    }

    #[test]
    fn partitions_that_returned_data_move_to_the_end() {
        let mut world = World::new();
        let (session, items) = world.begin(0, 0, vec![item(0, 0), item(1, 0)]).unwrap();
        world.sessions.tell(session, &items[0], 1, 0, true, false);
        let (_, items) = world.begin(session.id(), 1, vec![]).unwrap();
        assert_eq!(
            items.iter().map(|i| i.partition).collect::<Vec<_>>(),
            [1, 0]
        );
    }

    #[test]
    fn wrong_session_or_epoch_is_refused_and_the_session_survives() {
        let mut world = World::new();
        assert_eq!(
            world.begin(0, 3, vec![]),
            Err(ErrorCode::FetchSessionIdNotFound)
        );
        let (session, _) = world.begin(0, 0, vec![item(0, 0)]).unwrap();
        assert_eq!(
            world.begin(session.id(), 2, vec![]),
            Err(ErrorCode::InvalidFetchSessionEpoch)
        );
        assert!(world.begin(session.id(), 1, vec![]).is_ok());
        let by_id = world.sessions.begin(
            session.id(),
            2,
            true,
            vec![],
            &[],
            world.now,
            &mut world.rng,
        );
        assert_eq!(by_id, Err(ErrorCode::FetchSessionTopicIdError));
    }

    #[test]
    fn emptied_session_ends_with_id_zero() {
        let mut world = World::new();
        let (session, _) = world.begin(0, 0, vec![item(0, 0)]).unwrap();
        let forgotten = [(TopicRef::Name("t".into()), 0)];
        let (last, items) = world
            .sessions
            .begin(
                session.id(),
                1,
                false,
                vec![],
                &forgotten,
                world.now,
                &mut world.rng,
            )
            .unwrap();
        assert_eq!((last, items.len()), (SessionUse::None, 0));
        assert!(world.sessions.is_empty());
    }

    #[test]
    fn full_cache_evicts_only_the_idle() {
        let mut world = World::new();
        for _ in 0..SLOTS {
            world.begin(0, 0, vec![item(0, 0)]).unwrap();
        }
        assert_eq!(
            world.begin(0, 0, vec![item(0, 0)]).unwrap().0,
            SessionUse::None
        );
        world.now = world.now.after_us(SESSION_IDLE_EVICT_US);
        assert!(matches!(
            world.begin(0, 0, vec![item(0, 0)]).unwrap().0,
            SessionUse::New(_)
        ));
        assert_eq!(world.sessions.len(), SLOTS);
    }
}
