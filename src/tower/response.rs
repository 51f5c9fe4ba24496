//! Responses: the inner service's with more fields, or the layer's own.

use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{HeaderName, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::api::Reply;

pub(super) type Fields = Vec<(&'static str, String)>;

/// The response to a refused request.
pub(super) fn refusal(reply: &Reply) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(reply.body()));
    if let Ok(status) = reply.status.try_into() {
        *response.status_mut() = status;
    }
    for (name, value) in &reply.headers {
        append(&mut response, name, value);
    }
    response
}

/// Appends, since the fields are lists: those of an inner layer stay.
fn append<B>(response: &mut Response<B>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().append(HeaderName::from_static(name), value);
    }
}

pin_project! {
    /// The future of a [`RateLimit`](super::RateLimit).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        kind: Kind<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindPinned]
    enum Kind<F> {
        Granted { #[pin] inner: F, fields: Fields },
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn granted(inner: F, fields: Fields) -> Self {
        Self { kind: Kind::Granted { inner, fields } }
    }

    pub(super) const fn refused(response: Box<Response<Bytes>>) -> Self {
        Self { kind: Kind::Refused { response: Some(response) } }
    }
}

impl<F: Future<Output = Result<Response<B>, E>>, B, E> Future for ResponseFuture<F> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindPinned::Granted { inner, fields } => {
                let mut response = ready!(inner.poll(context))?.map(ResponseBody::inner);
                for (name, value) in fields {
                    append(&mut response, name, value);
                }
                Poll::Ready(Ok(response))
            }
            KindPinned::Refused { response } => {
                let response = response.take().map(|response| response.map(ResponseBody::own));
                response.map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
        }
    }
}

pin_project! {
    /// The body of a response through a [`RateLimitLayer`](super::RateLimitLayer): the inner service's, or that of a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = SourcePinned]
    enum Source<B> {
        Inner { #[pin] body: B },
        Own { bytes: Bytes },
    }
}

impl<B> ResponseBody<B> {
    const fn inner(body: B) -> Self {
        Self { source: Source::Inner { body } }
    }

    const fn own(bytes: Bytes) -> Self {
        Self { source: Source::Own { bytes } }
    }
}

/// The inner body's default, which layers outside this one may need for responses of their own.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B: Body<Data: From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().source.project() {
            SourcePinned::Inner { body } => body.poll_frame(context),
            SourcePinned::Own { bytes } if bytes.has_remaining() => {
                Poll::Ready(Some(Ok(Frame::data(mem::take(bytes).into()))))
            }
            SourcePinned::Own { .. } => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Inner { body } => body.is_end_stream(),
            Source::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Inner { body } => body.size_hint(),
            Source::Own { bytes } => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
        }
    }
}
