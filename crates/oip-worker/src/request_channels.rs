//! Connections for the concurrent requests of one process. Each request has its own connection.

use std::{
    collections::BTreeSet,
    io::{self, IoSlice, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    protocol::{Connection, TICK},
    tensor_locations::SharedRegions,
};

/// Maximum number of idle connections that are kept for later requests.
const MOST_SPARE: usize = 16;

/// Maximum total size of the idle connections' regions, in bytes. Larger regions are recreated when needed,
/// so that the memory for a burst of large tensors is freed.
const MOST_SPARE_BYTES: u64 = 16 << 20;

/// Maximum number of consecutive reads of the control socket. A read returns up to 512 numbers, so more reads
/// are rarely needed.
const MOST_READS: usize = 4;

/// Maximum number of abandoned requests that the worker has not finished. If there are more, the worker is
/// killed.
const MOST_GIVEN_UP: usize = 64;

/// Number that marks a new connection on the control socket; the connection's descriptor is attached. All
/// other numbers on this socket are the numbers of cancelled requests.
const CONNECTION: u64 = u64::MAX;

/// A connection to a process, for one request at a time, with the shared regions of that connection.
pub(crate) struct RequestChannel {
    pub(crate) connection: Connection,
    /// The shared regions, for workers that use them.
    pub(crate) regions: Option<SharedRegions>,
}

/// The idle connections of a process, and its abandoned requests.
#[derive(Default)]
pub(crate) struct RequestChannels {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spare: Vec<RequestChannel>,
    /// Abandoned requests that the worker has not reported as finished.
    given_up: BTreeSet<u64>,
    /// The first bytes of a number that is only partially read from the control socket.
    begun: Vec<u8>,
}

impl RequestChannels {
    /// Returns a connection for one request, either an idle connection or a new one.
    pub(crate) fn take(&self, control: &UnixStream) -> io::Result<RequestChannel> {
        let mut state = self.lock();
        state.read_ends(control);
        if let Some(spare) = state.spare.pop() {
            return Ok(spare);
        }
        let (ours, theirs) = UnixStream::pair()?;
        let connection = Connection::new(ours, Some(TICK))?;
        send_with(control, &OwnedFd::from(theirs))?;
        Ok(RequestChannel {
            connection,
            regions: Some(SharedRegions::default()),
        })
    }

    /// Keeps the connection of a finished request, or closes it.
    pub(crate) fn keep(&self, channel: RequestChannel) {
        let mut state = self.lock();
        let kept: u64 = state.spare.iter().map(bytes_of).sum();
        if state.spare.len() < MOST_SPARE && kept + bytes_of(&channel) <= MOST_SPARE_BYTES {
            state.spare.push(channel);
        }
    }

    /// Abandons the request `number`: messages about it are ignored until the worker finishes it. Returns
    /// false if the worker already runs too many abandoned requests.
    pub(crate) fn give_up(&self, number: u64, control: &UnixStream) -> bool {
        let mut state = self.lock();
        state.given_up.insert(number);
        state.read_ends(control);
        state.given_up.len() <= MOST_GIVEN_UP
    }

    /// Tells the worker that there will be no further requests.
    pub(crate) fn finish_sending(&self) {
        for channel in &self.lock().spare {
            // Errors are ignored: they mean that the worker has exited.
            let _ = channel.connection.finish_sending();
        }
    }

    /// Locks the state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Reads the numbers of abandoned requests that the worker has finished.
    fn read_ends(&mut self, mut control: &UnixStream) {
        let mut bytes = [0; 4096];
        for _ in 0..MOST_READS {
            let Ok(count @ 1..) = control.read(&mut bytes) else {
                return;
            };
            self.begun.extend_from_slice(&bytes[..count]);
            let (numbers, rest) = self.begun.as_chunks();
            for number in numbers {
                self.given_up.remove(&u64::from_le_bytes(*number));
            }
            self.begun = rest.to_vec();
        }
    }
}

/// Returns the total size of a connection's regions in bytes.
fn bytes_of(channel: &RequestChannel) -> u64 {
    channel.regions.as_ref().map_or(0, SharedRegions::kept)
}

/// Sends the worker its end of a connection.
fn send_with(control: &UnixStream, file: &OwnedFd) -> io::Result<()> {
    let number = CONNECTION.to_le_bytes();
    let files = [file.as_raw_fd()];
    let with_file = [ControlMessage::ScmRights(&files)];
    let part = [IoSlice::new(&number)];
    let sent = sendmsg::<()>(control.as_raw_fd(), &part, &with_file, MsgFlags::empty(), None)?;
    match sent == number.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_worker_may_go_on_with_so_many_requests_that_were_given_up() {
        let (control, mut theirs) = pair();
        let channels = RequestChannels::default();
        for number in 1..=MOST_GIVEN_UP as u64 {
            assert!(channels.give_up(number, &control));
        }
        // The worker reports two requests as finished, one of which was never abandoned.
        for number in [7u64, 10_000] {
            theirs.write_all(&number.to_le_bytes()).unwrap();
        }
        assert!(channels.give_up(1000, &control));
        assert!(!channels.give_up(1001, &control));
    }

    #[test]
    fn numbers_that_come_in_pieces_are_read_as_they_were_sent() {
        let (control, mut theirs) = pair();
        let channels = RequestChannels::default();
        for number in 1..=MOST_GIVEN_UP as u64 {
            assert!(channels.give_up(number, &control));
        }
        let ends = [3u64.to_le_bytes(), 4u64.to_le_bytes()].concat();
        for piece in ends.chunks(5) {
            theirs.write_all(piece).unwrap();
            channels.lock().read_ends(&control);
        }
        assert!(channels.give_up(1000, &control));
        assert!(channels.give_up(1001, &control));
        assert!(!channels.give_up(1002, &control));
    }

    #[test]
    fn a_worker_that_writes_without_end_holds_nobody_up() {
        let (control, mut theirs) = pair();
        theirs.write_all(&vec![0xff; (MOST_READS + 1) * 4096]).unwrap();
        State::default().read_ends(&control);
        assert_eq!((&control).read(&mut [0; 8192]).unwrap(), 4096);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_regions_of_spare_connections_are_not_kept() {
        let (control, _theirs) = pair();
        let channels = RequestChannels::default();
        let taken: Vec<RequestChannel> = (0..4).map(|_| channels.take(&control).unwrap()).collect();
        for (channel, mib) in taken.into_iter().zip([8, 16, 8, 1]) {
            channels.keep(RequestChannel {
                regions: Some(SharedRegions::with_inputs(mib << 20)),
                ..channel
            });
        }
        let kept: Vec<u64> = channels.lock().spare.iter().map(bytes_of).collect();
        assert_eq!(kept, [8 << 20; 2]);
    }

    #[test]
    fn connections_are_used_again_and_few_are_kept() {
        let (control, _theirs) = pair();
        let channels = RequestChannels::default();
        let taken: Vec<RequestChannel> = (0..2 * MOST_SPARE)
            .map(|_| channels.take(&control).unwrap())
            .collect();
        let kept: Vec<i32> = taken
            .iter()
            .map(|channel| channel.connection.socket().as_raw_fd())
            .collect();
        taken.into_iter().for_each(|channel| channels.keep(channel));
        assert_eq!(channels.lock().spare.len(), MOST_SPARE);
        let again = channels.take(&control).unwrap();
        assert_eq!(again.connection.socket().as_raw_fd(), kept[MOST_SPARE - 1]);
    }
}
