//! Lanes: threads of their own for work, and others for connections that keep the server busy, so that neither holds up those
//! who only ask whether the server is well.

use std::{
    future::{Future, poll_fn},
    io,
    panic::resume_unwind,
    pin::Pin,
    task::Poll,
};

use hyper::rt::Executor;
use tokio::{net::TcpStream, runtime::Handle, task::JoinSet};

use crate::activity::Activity;

/// The runtimes that connections go to once they have something to do. They need timers and sockets; when one ends, so do the
/// connections that it has.
///
/// Connections are accepted on the runtime that [`serve`](crate::serve) is called on. Those of HTTP/1 stay there while they send
/// no other requests than GET and HEAD, so that a server which is asked whether it lives answers at once, however much it has to
/// do. Those of HTTP/2 stay until they are busy: their server is best called on the runtime of `work` itself.
#[derive(Clone, Debug)]
pub struct Lanes {
    work: Handle,
    busy: Handle,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lane {
    /// Where it was accepted.
    Front,
    Work,
    Busy,
}

impl Lanes {
    /// `work` runs connections with requests, and `busy` those of them that have more to read than is read at a time, until
    /// that was a second ago. Where the threads of `busy` have a lower priority, such connections hold up nobody else.
    #[must_use]
    pub fn new(work: Handle, busy: Handle) -> Self {
        Self { work, busy }
    }

    /// A lane's runtime, if it is not the current one.
    fn runtime(&self, lane: Lane) -> Option<&Handle> {
        match lane {
            Lane::Front => None,
            Lane::Work => Some(&self.work),
            Lane::Busy => Some(&self.busy),
        }
    }
}

impl From<u8> for Lane {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Work,
            2 => Self::Busy,
            _ => Self::Front,
        }
    }
}

/// A connection's socket. The runtime of the connection's lane watches it: another one would have to wake the connection
/// across threads.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Option<TcpStream>,
    lane: Lane,
}

impl Socket {
    /// A socket that was accepted on the current runtime.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: Some(stream),
            lane: Lane::Front,
        }
    }

    /// The socket, which is moved to the connection's lane if it is not there yet.
    pub(crate) fn get(&mut self, activity: &Activity) -> io::Result<&mut TcpStream> {
        let lane = activity.lane();
        if lane != self.lane {
            self.lane = lane;
            let lanes = activity.limits().lanes.as_ref();
            if let Some(runtime) = lanes.and_then(|lanes| lanes.runtime(lane))
                && let Some(stream) = self.stream.take()
            {
                let stream = stream.into_std()?;
                let _context = runtime.enter();
                self.stream = Some(TcpStream::from_std(stream)?);
            }
        }
        self.stream
            .as_mut()
            .ok_or_else(|| io::Error::other("the connection could not be moved to other threads"))
    }
}

/// The tasks of a connection, which run where it is. They are moved between two polls; timers stay with the runtime that made
/// them and wake their task wherever it is.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    activity: Activity,
}

impl Tasks {
    pub(crate) fn new(activity: &Activity) -> Self {
        Self {
            activity: activity.clone(),
        }
    }

    /// Runs a future from a lane that this is polled on; `None` if the runtime of the future's lane has ended.
    pub(crate) async fn drive<F>(self, here: Lane, future: F) -> Option<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let mut future = Box::pin(future);
        loop {
            if let Some(output) = self.stay(here, &mut future).await {
                return Some(output);
            }
            let lane = self.activity.lane();
            let lanes = self.activity.limits().lanes.as_ref();
            let Some(runtime) = lanes.and_then(|lanes| lanes.runtime(lane)) else {
                return Some(future.await);
            };
            let (tasks, mut moved) = (self.clone(), future);
            // Ends with this future.
            let mut away = JoinSet::new();
            away.spawn_on(
                async move {
                    let output = tasks.stay(lane, &mut moved).await;
                    (output, moved)
                },
                runtime,
            );
            match away.join_next().await? {
                Ok((Some(output), _)) => return Some(output),
                Ok((None, back)) => future = back,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => return None,
                },
            }
        }
    }

    /// Polls a future until it ends, or until it belongs to another lane.
    async fn stay<F: Future>(&self, here: Lane, future: &mut Pin<Box<F>>) -> Option<F::Output> {
        poll_fn(|cx| {
            if self.activity.lane() != here {
                return Poll::Ready(None);
            }
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.activity.lane() != here => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Starts the tasks of an HTTP/2 connection's streams.
impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        let here = self.activity.lane();
        let lanes = self.activity.limits().lanes.as_ref();
        match lanes.and_then(|lanes| lanes.runtime(here)) {
            Some(runtime) => drop(runtime.spawn(self.clone().drive(here, future))),
            None => drop(tokio::spawn(future)),
        }
    }
}
