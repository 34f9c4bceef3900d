//! Addresses of this machine.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Returns whether all addresses of `host` are this machine's loopback addresses.
pub(super) fn is_local(host: &str) -> bool {
    host.to_socket_addrs().is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}

/// Returns the address of this machine's interface toward another machine.
pub(super) fn own_address(toward: &str) -> Option<IpAddr> {
    let there: SocketAddr = toward.to_socket_addrs().ok()?.next()?;
    let any = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // This sends nothing; the system only chooses the interface.
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
