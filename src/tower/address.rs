//! Where a request came from.

use std::net::{IpAddr, SocketAddr};
use std::str;

use http::request::Parts;

use crate::access::parse_address;

/// The address of the connection's other end, if the server has put it into the request's extensions.
pub(super) fn peer(request: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo::<SocketAddr>(peer)) = request.extensions.get() {
        return Some(peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo::<SocketAddr>(peer)) = request.extensions.get() {
        return Some(peer.ip());
    }
    request.extensions.get().map(SocketAddr::ip)
}

/// The detail of the answer to a request without it.
pub(super) const NO_PEER: &str = "the server's rate limit found no peer address in this request; nothing was taken. With axum, \
    enable the feature `axum` and serve with `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere, \
    insert the peer's `SocketAddr` into the request's extensions";

/// Entry number `count` from the right of `X-Forwarded-For`, over all its lines.
pub(super) fn forwarded(request: &Parts, count: usize) -> Option<IpAddr> {
    let lines = request.headers.get_all("x-forwarded-for").iter().rev();
    // Bytes: what a client wrote further left need not be text.
    let mut entries = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    let entry = str::from_utf8(entries.nth(count.checked_sub(1)?)?).ok()?.trim();
    // Some proxies append the port, then or always with IPv6 in brackets.
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    parse_address(bare).ok().or_else(|| entry.parse().map(|address: SocketAddr| address.ip()).ok())
}

/// The detail of the answer to a request without it.
pub(super) const NOT_FORWARDED: &str = "the server's rate limit found no client address in this request's X-Forwarded-For; nothing was taken. \
    Each trusted proxy must append the address of its peer";
