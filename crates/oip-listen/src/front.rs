//! Passes requests from a connection to the service, and responses back.

#[cfg(unix)]
use std::sync::OnceLock;
use std::{convert::Infallible, sync::Arc};

use bytes::{Buf, Bytes};
use h2::{RecvStream, server::SendResponse};
use http::{
    HeaderValue, Method, Request, Response,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT},
    request::Parts,
};
use http_body::Body;
use hyper::body::Incoming;
use tower_service::Service;

use crate::{
    ClientCertificate, ConnectionLimits, RequestBody, ResponseBody, Shutdown,
    activity::Activity,
    body::Report,
    lanes::Lane,
    leftover::Leftover,
    stream::Stream,
    stream_slots::{Admission, Seat},
    streams,
    tasks::Tasks,
};
#[cfg(unix)]
use crate::{Descriptors, descriptors::Reception};

/// State that the first request of a connection provides for all requests of the connection: the extensions
/// made from a passed descriptor.
#[derive(Default)]
pub(crate) struct FirstRequest {
    #[cfg(unix)]
    descriptors: Option<(Reception, Descriptors)>,
    #[cfg(unix)]
    brought: OnceLock<Option<http::Extensions>>,
}

impl FirstRequest {
    #[cfg(unix)]
    pub(crate) fn of(stream: &mut Stream, limits: &ConnectionLimits) -> Self {
        let descriptors = limits.descriptors.clone();
        Self {
            descriptors: descriptors
                .and_then(|descriptors| Some((stream.receive_descriptors()?, descriptors))),
            brought: OnceLock::new(),
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn of(_: &mut Stream, _: &ConnectionLimits) -> Self {
        Self::default()
    }

    /// Returns the extensions that the connection's first request provides. `request` may be that first
    /// request.
    fn brought<B>(&self, request: &Request<B>) -> Option<http::Extensions> {
        #[cfg(unix)]
        if let Some((reception, descriptors)) = &self.descriptors {
            let brought = self
                .brought
                .get_or_init(|| descriptors.of_first(request, reception.close()));
            return brought.clone();
        }
        let _ = request;
        None
    }
}

/// The service of a connection, and the context that its requests share.
pub(crate) struct Front<S> {
    pub(crate) service: S,
    pub(crate) first: FirstRequest,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) activity: Activity,
}

impl<S, B> Front<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Buf + Send,
{
    fn call(&self, mut head: Parts, brought: Option<http::Extensions>, body: RequestBody) -> S::Future {
        if let Some(brought) = brought {
            head.extensions.extend(brought);
        }
        if let Some(certificate) = &self.certificate {
            head.extensions.insert(certificate.clone());
        }
        self.service.clone().call(Request::from_parts(head, body))
    }

    /// Handles an HTTP/1 request.
    pub(crate) fn answer(
        &self,
        request: Request<Incoming>,
        shutdown: Shutdown,
    ) -> impl Future<Output = Result<Response<ResponseBody<B>>, Infallible>> + use<S, B> {
        let report = Report::new(&self.activity, Arc::default(), None);
        let is_work = !matches!(*request.method(), Method::GET | Method::HEAD);
        let brought = self.first.brought(&request);
        let (head, body) = request.into_parts();
        // If the body has already ended, nothing is left to drain before the next request.
        let leftover = (!body.is_end_stream()).then(Leftover::default);
        // A client that waits for 100-continue does not send its body after a different response.
        let will_send = !head.headers.contains_key(EXPECT);
        let body = RequestBody::http1(body, head.uri.path(), &report, leftover.clone());
        let answer = self.call(head, brought, body);
        let activity = self.activity.clone();
        async move {
            if is_work && activity.limits().lanes.is_some() && activity.lane() == Lane::Front {
                activity.go_to(Lane::Work);
                activity.moved().await;
            }
            let Ok(answer) = answer.await;
            let is_read = match leftover {
                // If another connection needs the slot, the unread part of the body is not read.
                Some(leftover) => leftover.read(will_send && !report.seat().is_revoked()).await,
                None => true,
            };
            if !is_read {
                activity.request_left_unread();
            }
            let mut response = answer.map(|body| ResponseBody::new(body, report));
            if shutdown.is_leaving() || !is_read {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
    }

    /// Handles an HTTP/2 stream in its own task, or refuses it.
    pub(crate) fn answer_stream(
        &self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        tasks: &Tasks,
    ) {
        let limits = self.activity.limits();
        let lasting = limits.lasting.as_ref();
        let kind = if self.activity.open_requests() < limits.assured_streams {
            Admission::Assured
        } else if lasting.is_some_and(|lasting| lasting.contains(request.uri().path())) {
            Admission::Lasting
        } else {
            Admission::Work
        };
        let (seat, number) = (Arc::<Seat>::default(), self.activity.number());
        let Some(place) = limits.streams.admit(number, kind, seat.clone()) else {
            return respond.send_reset(h2::Reason::REFUSED_STREAM);
        };
        let report = Report::new(&self.activity, seat.clone(), Some(place));
        let brought = self.first.brought(&request);
        let (mut head, body) = request.into_parts();
        if let Some(place) = lasting.and_then(|lasting| lasting.of(head.uri.path(), &seat)) {
            head.extensions.extend(place);
        }
        let len = head.headers.get(CONTENT_LENGTH);
        let len = len.and_then(|len| len.to_str().ok()?.parse().ok());
        let body = RequestBody::http2(body, len, head.uri.path(), &report);
        let answer = self.call(head, brought, body);
        tasks.execute(streams::answer(answer, respond, report));
    }
}
