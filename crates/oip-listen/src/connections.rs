//! How many connections there may be, and which of them makes room for a new one.

use std::{
    any::Any,
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
/// When there are so many, the one that has been idle for the longest time is closed for a new one. Where all have
/// requests in work, new ones wait.
///
/// ```
/// use oip_listen::ConnectionCap;
/// use std::sync::Arc;
///
/// // At most 1000 connections. The first 100 are free, the others share some memory that is used for other things too.
/// let memory = Arc::new(tokio::sync::Semaphore::new(16 << 20));
/// let cap = ConnectionCap::new(1000).charging(100, move || memory.clone().try_acquire_many_owned(128 << 10).ok());
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionCap(Arc<Shared>);

struct Shared {
    permits: Arc<Semaphore>,
    charging: Option<Charging>,
    open: Mutex<HashMap<u64, Arc<dyn Occupant>>>,
    opened: AtomicU64,
}

/// What connections cost.
struct Charging {
    free: Arc<Semaphore>,
    charge: Box<dyn Fn() -> Option<Charge> + Send + Sync>,
}

/// What a connection was charged, given back when it is dropped.
type Charge = Box<dyn Any + Send>;

/// A connection, as far as its place is concerned.
pub(crate) trait Occupant: Send + Sync {
    /// Since when it has nothing to do; `None` if it has, or if it is about to be closed.
    fn idle_since(&self) -> Option<Instant>;

    /// Asks it to make room for another one.
    fn ask_to_close(&self);
}

/// A connection that was idle for a shorter time does not make room: its client may be about to send its next request.
const LEAST_IDLE: Duration = Duration::from_millis(200);

/// How often a connection is asked to make room while there is none.
const PAUSE: Duration = Duration::from_millis(5);

impl ConnectionCap {
    /// A cap of so many connections.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self::with(Arc::new(semaphore(connections)), None)
    }

    /// The same, where all connections but the first `free` ones cost something: there is room for one more if `charge`
    /// gives something to keep as long as the connection is open.
    #[must_use]
    pub fn charging<C: Send + 'static>(
        self,
        free: usize,
        charge: impl Fn() -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        let charging = Charging {
            free: Arc::new(semaphore(free)),
            charge: Box::new(move || charge().map(|charge| Box::new(charge) as Charge)),
        };
        Self::with(self.0.permits.clone(), Some(charging))
    }

    fn with(permits: Arc<Semaphore>, charging: Option<Charging>) -> Self {
        Self(Arc::new(Shared {
            permits,
            charging,
            open: Mutex::default(),
            opened: AtomicU64::new(0),
        }))
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
        let charge = match &self.0.charging {
            None => None,
            Some(charging) => Some(charging.take()?),
        };
        Some(Room {
            _permit: permit,
            _charge: charge,
        })
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

fn semaphore(permits: usize) -> Semaphore {
    Semaphore::new(permits.min(Semaphore::MAX_PERMITS))
}

impl Charging {
    fn take(&self) -> Option<Charge> {
        match self.free.clone().try_acquire_owned() {
            Ok(free) => Some(Box::new(free)),
            Err(_) => (self.charge)(),
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
    _charge: Option<Charge>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_free_ones_are_charged() {
        let memory = Arc::new(Semaphore::new(25));
        let charge = {
            let memory = memory.clone();
            move || memory.clone().try_acquire_many_owned(10).ok()
        };
        let cap = ConnectionCap::new(5).charging(1, charge);
        let mut rooms: Vec<_> = (0..3).map(|_| cap.try_room().unwrap()).collect();
        assert_eq!(memory.available_permits(), 5);
        assert!(cap.try_room().is_none());
        drop(rooms.pop());
        assert_eq!(memory.available_permits(), 15);
        rooms.push(cap.try_room().unwrap());
        // The cap itself holds too.
        memory.add_permits(1000);
        rooms.extend([cap.try_room().unwrap(), cap.try_room().unwrap()]);
        assert!(cap.try_room().is_none());
        drop(rooms);
        assert_eq!(memory.available_permits(), 1025);
    }
}
