//! A worker's addresses, which stay its own while it is dead.

use std::net::{SocketAddr, TcpListener};

use serde::Serialize;
use tokio::net::TcpSocket;

use super::config::Config;
use super::error::SimError;

/// Where a worker listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// OpenAI HTTP.
    pub http: SocketAddr,
    /// KV events, a ZMQ publisher.
    pub kv: SocketAddr,
    /// Replay of KV events, a ZMQ router.
    pub replay: SocketAddr,
}

/// A worker's bound sockets that listen.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) http: TcpListener,
    pub(super) kv: TcpListener,
    pub(super) replay: TcpListener,
}

/// Sockets that hold a worker's ports without listening: connections are refused, and nobody else is given the ports.
#[derive(Debug)]
pub(super) struct Reserved {
    _sockets: [TcpSocket; 3],
    pub(super) addresses: Addresses,
}

impl Reserved {
    pub(super) fn new(config: &Config, worker: usize) -> Result<Self, SimError> {
        // Of a valid configuration every worker has an address.
        let host = config.worker_host(worker).unwrap_or(config.host);
        let offset = config.port_offset(worker);
        let reserve = |what, port: u16| {
            let addr = SocketAddr::new(host, if port == 0 { 0 } else { port + offset });
            let bind = || {
                let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.set_reuseaddr(true)?;
                socket.bind(addr)?;
                let addr = socket.local_addr()?;
                Ok((socket, addr))
            };
            bind().map_err(|source| SimError::Bind { what, addr, source })
        };
        let (http_socket, http) = reserve("the HTTP server", config.http_port)?;
        let (kv_socket, kv) = reserve("the event publisher", config.kv_port)?;
        let (replay_socket, replay) = reserve("the replay socket", config.replay_port)?;
        Ok(Self { _sockets: [http_socket, kv_socket, replay_socket], addresses: Addresses { http, kv, replay } })
    }

    /// Opens the ports.
    pub(super) fn listen(&self) -> Result<Listeners, SimError> {
        let listen = |what, addr| TcpListener::bind(addr).map_err(|source| SimError::Bind { what, addr, source });
        Ok(Listeners {
            http: listen("the HTTP server", self.addresses.http)?,
            kv: listen("the event publisher", self.addresses.kv)?,
            replay: listen("the replay socket", self.addresses.replay)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn reserved_ports_refuse_until_they_listen_and_again_after() {
        let reserved = Reserved::new(&Config::ephemeral(), 0).unwrap();
        let addr = reserved.addresses.http;
        assert!(TcpStream::connect(addr).is_err());
        for _ in 0..2 {
            let listeners = reserved.listen().unwrap();
            TcpStream::connect(addr).unwrap();
            drop(listeners);
            assert!(TcpStream::connect(addr).is_err());
        }
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let config = Config { http_port: port, ..Config::ephemeral() };
        let error = Reserved::new(&config, 0).and_then(|reserved| reserved.listen()).unwrap_err();
        assert!(error.to_string().contains(&port.to_string()), "{error}");
    }
}
