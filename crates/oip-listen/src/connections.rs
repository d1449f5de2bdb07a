//! How many connections there may be, and which of them makes room for a new one.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

/// How many connections there may be at once, over all listeners that share it.
///
/// When there are so many, the one that has been idle for the longest time is closed for a new one; a connection idles where all of its
/// requests wait for their client. Where all have requests in work, new ones wait.
#[derive(Clone, Debug)]
pub struct ConnectionCap(Arc<Shared>);

struct Shared {
    /// Connections that may be about to make room at once. Others are asked only then.
    asked: usize,
    permits: Arc<Semaphore>,
    open: Mutex<HashMap<u64, Arc<dyn Occupant>>>,
    opened: AtomicU64,
    evicted: AtomicU64,
}

/// What has become of connections.
///
/// ```
/// assert_eq!(oip_listen::ConnectionCap::new(10).counts().open, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were closed to make room for others.
    pub evicted: u64,
}

/// A connection, as far as its place is concerned.
pub(crate) trait Occupant: Send + Sync {
    /// Since when it has nothing to do; `None` if it has, or if it is about to be closed.
    fn idle_since(&self) -> Option<Instant>;

    /// Asks it to make room for another one.
    fn ask_to_close(&self);

    /// Whether it was asked so short a time ago that it may still be about to close.
    fn is_about_to_close(&self, now: Instant) -> bool;
}

/// A connection that was idle for a shorter time does not make room: its client may be about to send its next request.
const LEAST_IDLE: Duration = Duration::from_millis(200);

/// How often a connection is asked to make room while there is none.
const PAUSE: Duration = Duration::from_millis(5);

impl ConnectionCap {
    /// A cap of so many connections.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(Shared {
            asked: (connections / 16).max(1),
            permits: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            open: Mutex::default(),
            opened: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }))
    }

    /// Counts of all connections so far.
    #[must_use]
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            open: self.0.lock().len() as u64,
            evicted: self.0.evicted.load(Ordering::Relaxed),
        }
    }

    /// A connection is closed to make room for another.
    pub(crate) fn note_evicted(&self) {
        self.0.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until there is room for a connection, and makes some.
    pub(crate) async fn room(&self) -> Room {
        loop {
            if let Some(room) = self.try_room() {
                return room;
            }
            self.ask_idlest(Instant::now());
            sleep(PAUSE).await;
        }
    }

    /// Room for a connection, if there is some.
    pub(crate) fn try_room(&self) -> Option<Room> {
        let permit = self.0.permits.clone().try_acquire_owned().ok()?;
        Some(Room { _permit: permit })
    }

    /// Counts a connection for as long as the result lives.
    pub(crate) fn enter(&self, room: Room, occupant: Arc<dyn Occupant>) -> Place {
        let number = self.0.opened.fetch_add(1, Ordering::Relaxed);
        self.0.lock().insert(number, occupant);
        Place {
            shared: self.0.clone(),
            number,
            _room: room,
        }
    }

    /// Asks the connection that has been idle for the longest time to close, if any is.
    fn ask_idlest(&self, now: Instant) {
        let open = self.0.lock();
        let about_to_close = open.values().filter(|occupant| occupant.is_about_to_close(now));
        if about_to_close.count() >= self.0.asked {
            return;
        }
        let idle = open
            .values()
            .filter_map(|occupant| Some((occupant.idle_since()?, occupant)));
        let idlest = idle
            .filter(|(since, _)| now.saturating_duration_since(*since) >= LEAST_IDLE)
            .min_by_key(|(since, _)| *since);
        if let Some((_, occupant)) = idlest {
            occupant.ask_to_close();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections", self.lock().len())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Occupant>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one more connection.
pub(crate) struct Room {
    _permit: OwnedSemaphorePermit,
}

/// The place of an open connection.
pub(crate) struct Place {
    shared: Arc<Shared>,
    number: u64,
    _room: Room,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.number);
    }
}
