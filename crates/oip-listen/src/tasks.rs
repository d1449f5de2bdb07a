//! The tasks and the socket of a connection, which move between lanes together with the connection.

use std::{
    future::{Future, poll_fn},
    io,
    panic::resume_unwind,
    pin::Pin,
    task::Poll,
};

use tokio::{runtime::Handle, task::JoinSet};

use crate::{activity::Activity, lanes::Lane, stream::Stream};

/// A connection's socket. The socket is registered with the runtime of the connection's lane: another runtime
/// would have to wake the connection across threads for each event.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Option<Stream>,
    lane: Lane,
    /// The runtime that accepted the connection, if the socket may move back to it.
    home: Option<Handle>,
}

impl Socket {
    /// Creates a socket that was accepted on the current runtime.
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream: Some(stream),
            lane: Lane::Front,
            home: None,
        }
    }

    /// Creates a socket that was accepted on the runtime `home` and may return to it.
    pub(crate) fn with_home(stream: Stream, home: Handle) -> Self {
        Self {
            home: Some(home),
            ..Self::new(stream)
        }
    }

    /// Returns the stream, after moving it to the connection's lane if necessary.
    pub(crate) fn get(&mut self, activity: &Activity) -> io::Result<&mut Stream> {
        let lane = activity.lane();
        if lane != self.lane {
            self.lane = lane;
            let lanes = activity.limits().lanes.as_ref();
            let runtime = lanes.and_then(|lanes| lanes.runtime(lane)).or(self.home.as_ref());
            if let Some(runtime) = runtime
                && let Some(stream) = self.stream.take()
            {
                let _context = runtime.enter();
                self.stream = Some(stream.into_current_runtime()?);
            }
        }
        self.stream
            .as_mut()
            .ok_or_else(|| io::Error::other("the connection could not be moved to other threads"))
    }
}

/// The tasks of a connection, which run on its lane. A task moves to another lane between two polls. Timers
/// stay with the runtime that created them, and wake their task wherever it runs.
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

    /// Runs a future, starting on lane `here`. Returns `None` if the runtime of the connection's lane has
    /// ended.
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
                let turns = poll_fn(|cx| {
                    self.activity.begin_turn();
                    future.as_mut().poll(cx)
                });
                return Some(turns.await);
            };
            let (tasks, mut moved) = (self.clone(), future);
            // If `drive` is dropped, the set is dropped with it, which aborts the task on the other lane.
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

    /// Polls a future on lane `here` until it completes or the connection belongs to another lane; returns
    /// `None` in the second case.
    async fn stay<F: Future>(&self, here: Lane, future: &mut Pin<Box<F>>) -> Option<F::Output> {
        poll_fn(|cx| {
            if self.activity.lane() != here {
                return Poll::Ready(None);
            }
            self.activity.begin_turn();
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.activity.lane() != here => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl Tasks {
    /// Spawns the task of an HTTP/2 stream.
    pub(crate) fn execute<F>(&self, future: F)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let here = self.activity.lane();
        let lanes = self.activity.limits().lanes.as_ref();
        match lanes.and_then(|lanes| lanes.runtime(here)) {
            Some(runtime) => drop(runtime.spawn(self.clone().drive(here, future))),
            None => drop(tokio::spawn(future)),
        }
    }
}
