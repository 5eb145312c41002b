//! Where the server listens, in words.

use std::net::SocketAddr;
use std::path::PathBuf;

/// All sockets of the server.
pub(super) struct OpenPorts {
    /// HTTP: the port, and those of other servers that clients may call, too.
    pub(super) http: Vec<SocketAddr>,
    pub(super) grpc: Option<SocketAddr>,
    pub(super) grpc_socket: Option<PathBuf>,
}

impl OpenPorts {
    /// All ports and where they are reached, unless the URLs of the server and its gRPC port say it all: if it listens
    /// on all addresses of the machine, on further ports, or on a UNIX socket.
    pub(super) fn more_than_urls(&self) -> Option<String> {
        let all = self.http.iter().chain(&self.grpc);
        let is_everywhere = all.clone().any(|address| address.ip().is_unspecified());
        if !is_everywhere && self.http.len() < 2 && self.grpc_socket.is_none() {
            return None;
        }
        let mut places: Vec<String> = self.http.iter().map(|it| format!("HTTP on {it}")).collect();
        places.extend(self.grpc.map(|address| format!("gRPC on {address}")));
        let socket = self.grpc_socket.iter();
        places.extend(socket.map(|path| format!("gRPC on the UNIX socket {}", path.display())));
        let places = places.join(", ");
        let where_from = match is_everywhere {
            true => "all addresses of this machine, also for other machines",
            false => "these addresses only",
        };
        Some(format!("open: {places}; {where_from}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(http: &[&str], grpc: Option<&str>, socket: Option<&str>) -> Option<String> {
        let address = |text: &&str| text.parse().expect("an address");
        let listeners = OpenPorts {
            http: http.iter().map(address).collect(),
            grpc: grpc.as_ref().map(address),
            grpc_socket: socket.map(PathBuf::from),
        };
        listeners.more_than_urls()
    }

    #[test]
    fn every_open_port_is_told() {
        assert_eq!(told(&["127.0.0.1:8500"], Some("127.0.0.1:8501"), None), None);
        assert_eq!(told(&["10.0.0.5:8500"], None, None), None);
        let all = "all addresses of this machine, also for other machines";
        assert_eq!(
            told(&["0.0.0.0:8500"], Some("0.0.0.0:8501"), None),
            Some(format!("open: HTTP on 0.0.0.0:8500, gRPC on 0.0.0.0:8501; {all}"))
        );
        assert_eq!(
            told(&["[::]:8080", "[::]:8501"], Some("[::]:9000"), None),
            Some(format!("open: HTTP on [::]:8080, HTTP on [::]:8501, gRPC on [::]:9000; {all}"))
        );
        let only = "these addresses only";
        assert_eq!(
            told(&["127.0.0.1:1"], None, Some("/run/s")),
            Some(format!("open: HTTP on 127.0.0.1:1, gRPC on the UNIX socket /run/s; {only}"))
        );
    }
}
