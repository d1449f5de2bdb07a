//! The sessions of a model: one per run that goes on at the same time, over one copy of the weights.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use oip_service::CancelToken;
use oip_types::ServiceError;
use ort::{
    session::{
        RunOptions, Session,
        builder::{PrepackedWeights, SessionBuilder},
    },
    value::DynValue,
};

use super::{OnnxRuntime, tensors};
use crate::{
    payload::{Data, Payload},
    plan::ended,
    proto::GraphProto,
};

/// Sessions that a model has at most, more than instances of a model are meant to run: what comes beyond waits.
const MAX_SESSIONS: usize = 4096;

/// How often who waits for a session looks whether somebody still waits for it.
const PATIENCE: Duration = Duration::from_millis(50);

/// Bytes from which on a constant is worth sharing between sessions. Smaller ones steer how ONNX Runtime rewrites the
/// graph, for which they must stand in the file.
const SHARED_FROM: usize = 4096;

/// The sessions of one model.
pub(super) struct Pool {
    source: Source,
    sessions: Mutex<Sessions>,
    returned: Condvar,
}

#[derive(Default)]
struct Sessions {
    idle: Vec<Slot>,
    /// With those that run.
    count: usize,
}

/// A session, with the switch that ends its run.
pub(super) struct Slot {
    pub(super) session: Session,
    pub(super) options: Arc<RunOptions>,
}

impl Pool {
    /// A pool with one session.
    pub(super) fn new(
        runtime: &OnnxRuntime,
        content: &Bytes,
        graph: &GraphProto,
        threads: usize,
    ) -> Result<Self, ServiceError> {
        let source = Source {
            runtime: runtime.clone(),
            content: content.clone(),
            weights: weights(graph)?,
            prepacked: PrepackedWeights::new(),
            threads,
        };
        let first = source.session().map_err(|error| {
            let reason = error.message().replace('\n', " ");
            ServiceError::invalid(format!("ONNX Runtime refuses the model: {}", reason.trim()))
                .caused_by(error)
        })?;
        Ok(Self {
            source,
            sessions: Mutex::new(Sessions {
                idle: vec![first],
                count: 1,
            }),
            returned: Condvar::new(),
        })
    }

    /// A session for one run: one that is idle, or else a new one.
    pub(super) fn take(&self, cancel: &CancelToken) -> Result<Lease<'_>, ServiceError> {
        let mut sessions = self.lock();
        loop {
            if let Some(slot) = sessions.idle.pop() {
                return Ok(Lease {
                    pool: self,
                    slot: Some(slot),
                });
            }
            if sessions.count < MAX_SESSIONS {
                sessions.count += 1;
                break;
            }
            if cancel.is_cancelled() {
                return Err(ended(cancel));
            }
            let waited = self.returned.wait_timeout(sessions, PATIENCE);
            (sessions, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(sessions);
        // Counted off again if it fails or panics.
        let mut lease = Lease {
            pool: self,
            slot: None,
        };
        let slot = self.source.session();
        let slot = slot.map_err(|error| {
            ServiceError::internal("ONNX Runtime gives no further session").caused_by(error)
        })?;
        lease.slot = Some(slot);
        Ok(lease)
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that is in use. It goes back when this is dropped.
pub(super) struct Lease<'p> {
    pool: &'p Pool,
    slot: Option<Slot>,
}

impl Lease<'_> {
    /// The session; every lease that was handed out has one.
    pub(super) fn slot(&mut self) -> Result<&mut Slot, ServiceError> {
        self.slot
            .as_mut()
            .ok_or_else(|| ServiceError::internal("a lease without a session"))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut sessions = self.pool.lock();
        match self.slot.take() {
            Some(slot) => sessions.idle.push(slot),
            None => sessions.count -= 1,
        }
        drop(sessions);
        self.pool.returned.notify_one();
    }
}

/// What sessions are made of.
struct Source {
    runtime: OnnxRuntime,
    content: Bytes,
    weights: Vec<(String, Arc<DynValue>)>,
    prepacked: PrepackedWeights,
    threads: usize,
}

impl Source {
    fn session(&self) -> ort::Result<Slot> {
        let options = Arc::new(RunOptions::new()?);
        let mut builder = SessionBuilder::new(self.runtime.environment())?
            .with_intra_threads(self.threads)?
            .with_inter_threads(1)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            // Else a file with the right letters near its beginning is read as another format, which nobody checked.
            .with_config_entry("session.load_model_format", "ONNX")?
            .with_prepacked_weights(&self.prepacked)?;
        for (name, value) in &self.weights {
            builder = builder.with_initializer(name, value.clone())?;
        }
        Ok(Slot {
            session: builder.commit_from_memory(&self.content)?,
            options,
        })
    }
}

/// The large constants of a graph, in memory that all sessions use.
fn weights(graph: &GraphProto) -> Result<Vec<(String, Arc<DynValue>)>, ServiceError> {
    let mut weights = Vec::new();
    for tensor in &graph.initializer {
        let is_input = graph.input.iter().any(|input| input.name == tensor.name);
        if is_input || crate::dtype::from_onnx(tensor.data_type).is_none() {
            continue;
        }
        let payload = Payload::read(tensor)?;
        if let (Data::Fixed(bytes), Some(dtype)) = (&payload.data, payload.datatype.dtype())
            && bytes.len() >= SHARED_FROM
        {
            let value = tensors::owned(dtype, &payload.shape, bytes)?;
            weights.push((tensor.name.clone(), Arc::new(value)));
        }
    }
    Ok(weights)
}
