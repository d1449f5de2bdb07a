//! The health service `grpc.health.v1`.

use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};

use oip_resources::CallSlot;
use oip_service::InferenceService;
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};
use tonic::{Request, Response, Status, codegen::tokio_stream::Stream};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

/// Creates the health service. Watchers' streams end once `is_draining` is true.
pub(crate) fn service(
    service: Arc<dyn InferenceService>,
    is_draining: watch::Receiver<bool>,
) -> HealthServer<impl Health> {
    HealthServer::new(HealthService { service, is_draining })
}

/// `grpc.health.v1`: serving when the server is ready.
struct HealthService {
    service: Arc<dyn InferenceService>,
    is_draining: watch::Receiver<bool>,
}

/// The services with a health status; the empty name means the server.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

fn status_of(service: &Arc<dyn InferenceService>) -> ServingStatus {
    match service.readiness().is_ready() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(HealthCheckResponse {
            status: status_of(&self.service).into(),
        }))
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        let place = request.extensions().get::<CallSlot>().cloned();
        // A watcher never counts as working, so its slot can always be revoked.
        place.iter().for_each(CallSlot::rest);
        let service = request.into_inner().service;
        let is_known = SERVICES.contains(&service.as_str());
        let mut interval = interval(Watch::INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Response::new(Watch {
            health: is_known.then(|| self.service.clone()),
            is_draining: self.is_draining.clone(),
            place,
            last: None,
            interval,
        }))
    }
}

/// A stream that sends the server's status when the stream starts, and on every change.
struct Watch {
    /// The service to watch; `None` for an unknown service, which gRPC allows clients to watch.
    health: Option<Arc<dyn InferenceService>>,
    is_draining: watch::Receiver<bool>,
    /// The slot that the watcher occupies, if concurrent streams are limited.
    place: Option<CallSlot>,
    last: Option<ServingStatus>,
    interval: Interval,
}

impl Watch {
    /// Polling interval of readiness.
    const INTERVAL: Duration = Duration::from_secs(1);
}

impl Stream for Watch {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        while self.interval.poll_tick(cx).is_ready() {
            let status = self
                .health
                .as_ref()
                .map_or(ServingStatus::ServiceUnknown, status_of);
            if self.last.replace(status) != Some(status) {
                return Poll::Ready(Some(Ok(HealthCheckResponse {
                    status: status.into(),
                })));
            }
            // The watcher has received the status that the server is not ready. The stream ends, because the
            // drain waits for open streams.
            if *self.is_draining.borrow() {
                return Poll::Ready(None);
            }
        }
        let place = self.place.as_ref();
        if place.is_some_and(|place| place.poll_revoked(cx).is_ready()) {
            self.place = None;
            return Poll::Ready(Some(Err(Status::unavailable(
                "this watch was closed to make room for another call; start it again",
            ))));
        }
        Poll::Pending
    }
}
