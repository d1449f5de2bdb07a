//! Limits the number of connections, and evicts idle ones in favour of new ones.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

/// The maximum number of connections, over all listeners that share this cap.
///
/// When the cap is reached, the connection that has been idle for the longest time is closed in favour of a
/// new one. A connection is idle when all its requests wait for their client. If no connection is idle, new
/// connections wait.
#[derive(Clone, Debug)]
pub struct ConnectionCap(Arc<SharedState>);

struct SharedState {
    /// Maximum number of connections that are asked to close at a time. Other connections are asked only
    /// after these connections have closed.
    asked: usize,
    permits: Arc<Semaphore>,
    open: Mutex<HashMap<u64, Arc<dyn Occupant>>>,
    opened: AtomicU64,
    evicted: AtomicU64,
}

/// Counts of connections.
///
/// ```
/// assert_eq!(oip_listen::ConnectionCap::new(10).counts().open, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Number of connections that are open at the moment.
    pub open: u64,
    /// Number of connections that were closed to make room for others.
    pub evicted: u64,
}

/// A connection that occupies a slot.
pub(crate) trait Occupant: Send + Sync {
    /// Returns the time since which the connection has been idle; `None` if it is busy or about to close.
    fn idle_since(&self) -> Option<Instant>;

    /// Asks the connection to close in favour of another connection.
    fn ask_to_close(&self);

    /// Returns whether the connection was asked so recently that it may still be closing.
    fn is_about_to_close(&self, now: Instant) -> bool;
}

/// Minimum idle time before a connection is evicted: its client may be about to send the next request.
const LEAST_IDLE: Duration = Duration::from_millis(200);

/// Interval at which idle connections are asked to close.
const PAUSE: Duration = Duration::from_millis(5);

impl ConnectionCap {
    /// Creates a cap of `connections`.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(SharedState {
            asked: (connections / 16).max(1),
            permits: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            open: Mutex::default(),
            opened: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }))
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            open: self.0.lock().len() as u64,
            evicted: self.0.evicted.load(Ordering::Relaxed),
        }
    }

    /// Counts a connection that was closed in favour of another one.
    pub(crate) fn note_evicted(&self) {
        self.0.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for a free slot, evicting idle connections.
    pub(crate) async fn room(&self) -> Room {
        loop {
            if let Some(room) = self.try_room() {
                return room;
            }
            self.ask_idlest(Instant::now());
            sleep(PAUSE).await;
        }
    }

    /// Returns a free slot, if any.
    pub(crate) fn try_room(&self) -> Option<Room> {
        let permit = self.0.permits.clone().try_acquire_owned().ok()?;
        Some(Room { _permit: permit })
    }

    /// Registers a connection until the returned value is dropped.
    pub(crate) fn enter(&self, room: Room, occupant: Arc<dyn Occupant>) -> ConnectionSlot {
        let number = self.0.opened.fetch_add(1, Ordering::Relaxed);
        self.0.lock().insert(number, occupant);
        ConnectionSlot {
            shared: self.0.clone(),
            number,
            _room: room,
        }
    }

    /// Asks the connection that has been idle the longest to close.
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

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections", self.lock().len())
    }
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Occupant>>> {
        self.open.lock()
    }
}

/// A reserved slot for one more connection.
pub(crate) struct Room {
    _permit: OwnedSemaphorePermit,
}

/// The slot of an open connection.
pub(crate) struct ConnectionSlot {
    shared: Arc<SharedState>,
    number: u64,
    _room: Room,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.number);
    }
}
