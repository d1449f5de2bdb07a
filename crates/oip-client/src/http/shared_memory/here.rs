//! Requests over connections with shared memory regions, driven by the calling thread.

use oip_types::{InferRequest, InferResponse, rest::encode_request};
use tensor_mmap::SharedMemory as Mapped;

use super::{connections::Connections, register};
use crate::{
    ErrorKind, Patience, Result,
    http::{HttpClient, connection::Connection, direct, not_encoded},
    patience::Wait,
    shared_memory::{
        output_bytes,
        pool::{Plan, PooledRegion},
        refusal::{NOT_OFFERED, PATIENCE, Refusal},
        region::Region,
    },
};

type HttpRegion = PooledRegion<Connection>;

impl HttpClient {
    /// Makes one attempt over a connection with a region. Returns `None` if no such connection is available.
    pub(super) fn attempt_here(
        &self,
        memory: &Connections,
        request: &InferRequest,
        plan: Plan,
        patience: &Patience,
        wait: &Wait<'_>,
    ) -> Result<Option<InferResponse>> {
        let Some(mut shared) = self.connection_here(memory, plan, patience, wait)? else {
            return Ok(None);
        };
        let placed = shared.region.place(request)?;
        let encoded = (
            encode_request(&placed, self.encoding()).map_err(not_encoded)?,
            None,
        );
        let message = self.infer_message(Self::infer_path(request), encoded);
        let (answer, may_stay) = direct::exchange(
            &mut shared.connection,
            &self.shared.endpoint,
            self.settings(),
            &message,
            wait,
        )?;
        let response = self.decode_from(answer, &shared.region)?;
        // After an error response the server may still write into the region, so the connection is reused
        // only after a successful response.
        if may_stay {
            memory.here.keep(shared);
        }
        memory.here.note_outputs(request, output_bytes(&response));
        Ok(Some(response))
    }

    /// Returns a connection whose region has at least the planned size.
    fn connection_here(
        &self,
        memory: &Connections,
        plan: Plan,
        patience: &Patience,
        wait: &Wait<'_>,
    ) -> Result<Option<HttpRegion>> {
        while let Some(kept) = memory.here.take(plan.region) {
            if kept.connection.is_open() {
                return Ok(Some(kept));
            }
        }
        let (endpoint, settings) = (&self.shared.endpoint, self.settings());
        // If connecting fails, the caller sends the request without a region. If that attempt fails too, its
        // error gives the reason.
        let mut connection = match direct::connect(endpoint, settings.connect_timeout, wait) {
            Ok(connection) => connection,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(_) => return Ok(None),
        };
        let patience = patience.until(Some(PATIENCE.min(settings.connect_timeout)));
        match self.register_here(&mut connection, plan.region, &patience) {
            Ok(Ok(region)) => Ok(Some(PooledRegion { connection, region })),
            Ok(Err(Refusal { pause, least })) => {
                memory.here.pause(pause, least);
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(_) => {
                memory.here.pause(NOT_OFFERED, 0);
                Ok(None)
            }
        }
    }

    fn register_here(
        &self,
        connection: &mut Connection,
        bytes: u64,
        wait: &Wait<'_>,
    ) -> Result<std::result::Result<Region, Refusal>> {
        // Mapping fails when the system is out of memory or enforces a strict limit on memory.
        let Ok((mapped, descriptor)) = Mapped::new(bytes) else {
            return Ok(Err(Refusal::all(NOT_OFFERED)));
        };
        let settings = self.settings();
        let head = direct::head(&self.shared.endpoint, settings, &register::message());
        connection.send_with(&head, &descriptor, wait)?;
        let (answer, may_stay) =
            connection.answer(wait, &settings.spare, |status| match status.is_success() {
                true => Ok(64 << 10),
                false => Err(64 << 10),
            })?;
        let judged = register::judge(answer.status.as_u16(), &answer.body, bytes);
        Ok(match may_stay {
            true => judged.map(|()| Region::new(mapped)),
            false => Err(judged.err().unwrap_or(Refusal::all(NOT_OFFERED))),
        })
    }
}
