//! The gate: a tower service that puts a guard in front of another service.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Extensions, HeaderValue, Method, Request, Response, header::WWW_AUTHENTICATE};
use oip_resources::RequestNotes;
use oip_service::route::Route;
use oip_types::ServiceError;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::guard::{Admission, Door, Guard, Refusal, Sender, Stop};

/// A service behind a [`Guard`].
///
/// If authorization depends on the content of a request, the admitted request carries a
/// [`Grant`](oip_service::Grant). Each call that changes state is logged with the target `audit`. If the
/// request carries [`RequestNotes`], the gate records the client's identity there.
pub struct Gate<S, B> {
    service: S,
    guard: Guard,
    door: Door,
    transport: Transport<B>,
}

/// The properties of a transport that a gate needs.
pub struct Transport<B> {
    /// Whether paths are gRPC paths.
    pub is_grpc: bool,
    /// Creates the response to a refused request for a route.
    pub refuse: fn(&ServiceError, &Route) -> Response<B>,
    /// Returns the names in the client's certificate, as `uri:...`, `dns:...` or `email:...`.
    pub certificate: fn(&Extensions) -> Vec<String>,
}

impl<B> Transport<B> {
    /// Adds the route of a request's path to its extensions. A route from an outer layer is replaced: that
    /// layer may have read the path before a rewrite, or with the rules of another transport.
    pub fn read_route<R>(&self, request: &mut Request<R>) {
        let path = request.uri().path();
        let route = match self.is_grpc {
            true => Route::of_grpc(path),
            false => Route::of_http(request.method(), path),
        };
        request.extensions_mut().insert(route);
    }
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
    /// Creates a gate in front of `service`.
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
    S: Service<Request<R>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = GateFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        self.decide(request, None)
    }
}

impl<S, B> Gate<S, B> {
    /// Admits or refuses a request by its head. `sender` is the verified sender, if the token had to be
    /// verified.
    fn decide<R>(&mut self, mut request: Request<R>, sender: Option<Sender>) -> GateFuture<S::Future, B>
    where
        S: Service<Request<R>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
        R: Send + 'static,
    {
        self.transport.read_route(&mut request);
        let route = Route::of(&request);
        let certificate = || (self.transport.certificate)(request.extensions());
        // Without a table, the client's identity is the first name in its certificate.
        let by_certificate = || Some(certificate().first()?.escape_debug().to_string());
        // Only POST changes state. Requests with other methods on the same path do not, such as CORS
        // preflights.
        let change = route.change().filter(|_| request.method() == Method::POST);
        let notes = request.extensions().get::<Arc<RequestNotes>>();
        match self
            .guard
            .admit(&self.door, route, request.headers(), certificate, sender)
        {
            Err(Stop::Unverified(unverified)) => {
                let mut gate = self.clone();
                GateFuture::Verifying {
                    future: Box::pin(async move {
                        let sender = gate.guard.verify(unverified).await;
                        gate.decide(request, Some(sender)).await
                    }),
                }
            }
            Err(Stop::Refused(refusal)) => {
                if let (Some(notes), Some(shown)) = (notes, &refusal.shown) {
                    notes.set_identity(shown);
                }
                GateFuture::Refused {
                    response: Some(self.refuse(refusal, route, change)),
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
                GateFuture::Admitted {
                    future: self.service.call(request),
                    audit,
                }
            }
        }
    }

    /// Returns the response to a refused request. A refused `change` is logged.
    fn refuse(&self, refusal: Refusal, route: &Route, change: Option<&str>) -> Response<B> {
        if let Some(change) = change {
            let identity = refusal.shown.as_deref().unwrap_or("unknown");
            let (model, reason) = (route.model_name(), refusal.error.message());
            tracing::warn!(target: "audit", identity, change, model, reason, "refused");
        }
        let mut response = (self.transport.refuse)(&refusal.error, route);
        if let Some(challenge) = refusal.challenge {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// The audit record of a call. The record is logged when the call has its response or is cancelled.
struct Audit {
    admitted: Admission,
    change: &'static str,
}

impl Audit {
    fn log<B>(&self, response: Option<&Response<B>>) {
        let identity = self.admitted.shown.as_deref().unwrap_or("anonymous");
        let model = self.admitted.model.as_ref();
        let model = model.and_then(|model| model.lock().clone());
        let change = self.change;
        let status = response.map(|response| response.status().as_u16());
        // A successful gRPC call has its status in the trailers instead.
        let grpc_status = response.and_then(|response| response.headers().get("grpc-status"));
        let grpc_status = grpc_status.and_then(|status| HeaderValue::to_str(status).ok());
        let outcome = match response {
            None => "cancelled by the client",
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
    /// The response future of a [`Gate`].
    #[project = GateFutureProjection]
    pub enum GateFuture<F, B> {
        #[doc(hidden)]
        Refused { response: Option<Response<B>> },
        #[doc(hidden)]
        Verifying { future: Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>> },
        #[doc(hidden)]
        Admitted {
            #[pin]
            future: F,
            audit: Option<Box<Audit>>,
        },
    }

    impl<F, B> PinnedDrop for GateFuture<F, B> {
        fn drop(this: Pin<&mut Self>) {
            if let GateFutureProjection::Admitted { audit, .. } = this.project()
                && let Some(audit) = audit.take()
            {
                audit.log::<B>(None);
            }
        }
    }
}

impl<F, B> Future for GateFuture<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            GateFutureProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => Poll::Pending,
            },
            GateFutureProjection::Verifying { future } => future.as_mut().poll(cx),
            GateFutureProjection::Admitted { future, audit } => {
                let Ok(response) = ready!(future.poll(cx));
                if let Some(audit) = audit.take() {
                    audit.log(Some(&response));
                }
                Poll::Ready(Ok(response))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        future::{Ready, ready},
        sync::mpsc,
        task::Waker,
    };

    use oip_resources::{CpuPool, Lease};
    use oip_types::ErrorCode;
    use serde_json::json;

    use super::*;
    use crate::jwt::tests::Issuer;

    /// A service that responds with 200 to every request.
    #[derive(Clone)]
    struct AlwaysOk;

    impl Service<Request<()>> for AlwaysOk {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            ready(Ok(Response::default()))
        }
    }

    /// Returns a gate, its pool with one thread for verifying signatures, and a token issuer that the gate
    /// trusts.
    fn gate() -> (Gate<AlwaysOk, String>, CpuPool, Issuer) {
        let (folder, issuer, cpu) = (tempfile::tempdir().unwrap(), Issuer::new(), CpuPool::new(1));
        let path = folder.path().join("auth.toml");
        fs::write(folder.path().join("keys.json"), issuer.set().to_string()).unwrap();
        let text = "[jwt]\nkeys = \"keys.json\"\nissuer = \"i\"\naudience = \"a\"\n[identities.ci]\njwt = [\"ci\"]\napis = \
                    [\"*\"]\n[anonymous]\napis = [\"health\"]";
        fs::write(&path, text).unwrap();
        let guard = Guard::with_table(&path, cpu.clone()).unwrap();
        let transport = Transport {
            is_grpc: false,
            refuse: |error: &ServiceError, _| {
                let response = Response::builder().status(error.code().http_status());
                response.body(error.to_string()).unwrap()
            },
            certificate: |_| Vec::new(),
        };
        (
            Gate::new(AlwaysOk, guard, Door::default(), transport),
            cpu,
            issuer,
        )
    }

    fn with_token(token: &str) -> Request<()> {
        let request = Request::get("/v2").header("authorization", format!("Bearer {token}"));
        request.body(()).unwrap()
    }

    #[tokio::test]
    async fn signatures_are_verified_off_the_thread_that_answers_others() {
        let (mut gate, cpu, issuer) = gate();
        let claims = json!({"iss": "i", "aud": "a", "sub": "ci", "exp": u64::MAX});
        let good = issuer.sign(&json!({"alg": "ES256", "kid": "ec"}), &claims);
        let bad = Issuer::new().sign(&json!({"alg": "ES256", "kid": "ec"}), &claims);
        let (release, blocked) = mpsc::channel::<()>();
        let lease = Lease::unlimited();
        let mut blocking = Box::pin(cpu.run(&lease, 1, move || {
            let _ = blocked.recv();
            Ok(())
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(blocking.as_mut().poll(&mut cx).is_pending());
        let mut waiting: Vec<_> = [&good, &bad]
            .map(|token| Box::pin(gate.call(with_token(token))))
            .into();
        for answer in &mut waiting {
            assert!(
                answer.as_mut().poll(&mut cx).is_pending(),
                "it does not wait for the pool"
            );
        }
        // Requests without a token, or with a token that is not a JWT, are decided immediately.
        let live = gate.call(Request::get("/livez").body(()).unwrap()).await.unwrap();
        assert_eq!(live.status(), 200);
        assert_eq!(gate.call(with_token("s3cret")).await.unwrap().status(), 401);
        drop(release);
        let mut statuses = Vec::new();
        for answer in waiting {
            let response = answer.await.unwrap();
            let is_challenged = response.headers().contains_key(WWW_AUTHENTICATE);
            statuses.push((response.status().as_u16(), is_challenged));
        }
        assert_eq!(statuses, [(200, false), (401, true)]);
        blocking.await.unwrap();
        // A valid token is cached, so the pool is not used again.
        assert!(
            Box::pin(gate.call(with_token(&good)))
                .as_mut()
                .poll(&mut cx)
                .is_ready()
        );
    }

    /// The gate ignores a route that an outer layer parsed before the path was rewritten.
    #[tokio::test]
    async fn a_route_from_an_outer_layer_does_not_decide() {
        let (mut gate, _, _) = gate();
        for stale in ["/v2/health/live", "/unknown"] {
            let mut request = Request::get(stale).body(()).unwrap();
            Route::read_http(&mut request);
            *request.uri_mut() = "/v2/models/m".parse().unwrap();
            let status = gate.call(request).await.unwrap().status().as_u16();
            assert_eq!(status, ErrorCode::PermissionDenied.http_status(), "{stale}");
        }
        let mut request = Request::get("/v2/models/m").body(()).unwrap();
        Route::read_http(&mut request);
        *request.uri_mut() = "/v2/health/live".parse().unwrap();
        assert_eq!(gate.call(request).await.unwrap().status().as_u16(), 200);
    }

    #[tokio::test]
    async fn an_address_without_changes_names_the_sender_of_a_verified_token() {
        let (gate, _, issuer) = gate();
        let mut gate = Gate {
            door: Door {
                accepts: crate::AcceptedCalls::NoAdministration("elsewhere"),
                ..Door::default()
            },
            ..gate
        };
        let claims = json!({"iss": "i", "aud": "a", "sub": "ci", "exp": u64::MAX});
        let token = issuer.sign(&json!({"alg": "ES256", "kid": "ec"}), &claims);
        let notes = Arc::new(RequestNotes::default());
        let mut request = with_token(&token);
        *request.uri_mut() = "/v2/repository/models/m/unload".parse().unwrap();
        *request.method_mut() = http::Method::POST;
        request.extensions_mut().insert(notes.clone());
        let response = gate.call(request).await.unwrap();
        assert_eq!(
            response.status().as_u16(),
            ErrorCode::PermissionDenied.http_status()
        );
        assert_eq!(notes.identity(), Some("ci ('ci')"));
    }
}
