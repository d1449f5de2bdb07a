//! The guard in front of a service, as a tower service.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, ready},
};

use http::{Extensions, HeaderValue, Request, Response, header::WWW_AUTHENTICATE};
use oip_service::RequestNotes;
use oip_types::ServiceError;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    call::Call,
    guard::{Admitted, Door, Guard},
};

/// A service behind a [`Guard`].
///
/// What it lets through carries a [`Grant`](oip_service::Grant) where only the request's content tells whether it is allowed. Each
/// call that changes something is one line of the log, with the target `audit`. Where the request carries
/// [`RequestNotes`], its identity is noted there.
pub struct Gate<S, B> {
    service: S,
    guard: Guard,
    door: Door,
    transport: Transport<B>,
}

/// A transport's properties that a gate needs.
pub struct Transport<B> {
    /// Whether paths are those of gRPC.
    pub is_grpc: bool,
    /// Answers a request that was refused.
    pub refuse: fn(&ServiceError) -> Response<B>,
    /// The names in the client's certificate, as `uri:...`, `dns:...` or `email:...`.
    pub certificate: fn(&Extensions) -> Vec<String>,
}

impl<B> Clone for Transport<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Transport<B> {}

impl<S: Clone, B> Clone for Gate<S, B> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            guard: self.guard.clone(),
            door: self.door.clone(),
            transport: self.transport,
        }
    }
}

impl<S, B> Gate<S, B> {
    /// Puts a guard before a service.
    pub fn new(service: S, guard: Guard, door: Door, transport: Transport<B>) -> Self {
        Self {
            service,
            guard,
            door,
            transport,
        }
    }
}

impl<S, B, R> Service<Request<R>> for Gate<S, B>
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible>,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answer<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        let path = request.uri().path();
        let call = match self.transport.is_grpc {
            true => Call::of_grpc(path),
            false => Call::of_http(request.method(), path),
        };
        let certificate = || (self.transport.certificate)(request.extensions());
        // Without a table, clients are called by the first name in their certificate.
        let by_certificate = || Some(certificate().first()?.escape_debug().to_string());
        let change = call.change;
        let notes = request.extensions().get::<Arc<RequestNotes>>();
        match self
            .guard
            .admit(&self.door, &call, request.headers(), certificate)
        {
            Err(refusal) => {
                if let (Some(notes), Some(shown)) = (notes, &refusal.shown) {
                    notes.set_identity(shown);
                }
                if let Some(change) = change {
                    let identity = refusal.shown.as_deref().unwrap_or("unknown");
                    let (model, reason) = (call.model.as_deref(), refusal.error.message());
                    tracing::warn!(target: "audit", identity, change, model, reason, "refused");
                }
                let mut response = (self.transport.refuse)(&refusal.error);
                if let Some(challenge) = refusal.challenge {
                    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                }
                Answer::Refused {
                    response: Some(response),
                }
            }
            Ok(mut admitted) => {
                if notes.is_some() || change.is_some() {
                    admitted.shown = admitted.shown.or_else(by_certificate);
                }
                if let (Some(notes), Some(shown)) = (notes, &admitted.shown) {
                    notes.set_identity(shown);
                }
                if let Some(grant) = admitted.grant.take() {
                    request.extensions_mut().insert(grant);
                }
                let audit = change.map(|change| Box::new(Audit { admitted, change }));
                Answer::Admitted {
                    answer: self.service.call(request),
                    audit,
                }
            }
        }
    }
}

/// The line for the log, once a call was answered or given up.
struct Audit {
    admitted: Admitted,
    change: &'static str,
}

impl Audit {
    fn log<B>(&self, response: Option<&Response<B>>) {
        let identity = self.admitted.shown.as_deref().unwrap_or("anonymous");
        let model = self.admitted.model.as_ref();
        let model = model.and_then(|model| model.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let change = self.change;
        let status = response.map(|response| response.status().as_u16());
        // A call of gRPC that went well has its status behind its answer.
        let grpc_status = response.and_then(|response| response.headers().get("grpc-status"));
        let grpc_status = grpc_status.and_then(|status| HeaderValue::to_str(status).ok());
        let outcome = match response {
            None => "given up by the client",
            Some(response)
                if response.status().is_success() && grpc_status.is_none_or(|status| status == "0") =>
            {
                "done"
            }
            Some(_) => "failed",
        };
        tracing::info!(target: "audit", identity, change, model, status, grpc_status, "{outcome}");
    }
}

pin_project! {
    /// The answer of a [`Gate`].
    #[project = AnswerProjection]
    pub enum Answer<F, B> {
        #[doc(hidden)]
        Refused { response: Option<Response<B>> },
        #[doc(hidden)]
        Admitted {
            #[pin]
            answer: F,
            audit: Option<Box<Audit>>,
        },
    }

    impl<F, B> PinnedDrop for Answer<F, B> {
        fn drop(this: Pin<&mut Self>) {
            if let AnswerProjection::Admitted { audit, .. } = this.project()
                && let Some(audit) = audit.take()
            {
                audit.log::<B>(None);
            }
        }
    }
}

impl<F, B> Future for Answer<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AnswerProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => Poll::Pending,
            },
            AnswerProjection::Admitted { answer, audit } => {
                let Ok(response) = ready!(answer.poll(cx));
                if let Some(audit) = audit.take() {
                    audit.log(Some(&response));
                }
                Poll::Ready(Ok(response))
            }
        }
    }
}
