//! Notifies systemd of readiness and shutdown. For a `Type=notify` service, `NOTIFY_SOCKET` names the socket.

/// Sends a state to systemd, if it requested notifications. Failures are ignored.
pub(crate) fn tell(state: &str) {
    #[cfg(unix)]
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, state, "cannot notify systemd: it does not listen on NOTIFY_SOCKET");
    }
    #[cfg(not(unix))]
    let _ = state;
}

/// Sends one state as a datagram.
#[cfg(unix)]
fn send(socket: &std::ffi::OsStr, state: &str) -> std::io::Result<()> {
    use std::os::unix::{ffi::OsStrExt, net::UnixDatagram};

    let datagram = UnixDatagram::unbound()?;
    // systemd reads immediately. A different reader must not block the server.
    datagram.set_nonblocking(true)?;
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        return datagram.send_to_addr(state.as_bytes(), &address).map(drop);
    }
    datagram.send_to(state.as_bytes(), socket).map(drop)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn states_arrive_as_datagrams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1\nSTATUS=serving").unwrap();
        let mut read = [0; 100];
        let len = systemd.recv(&mut read).unwrap();
        assert_eq!(&read[..len], b"READY=1\nSTATUS=serving");
        assert!(send(folder.path().join("nowhere").as_os_str(), "READY=1").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sockets_without_a_file_are_known_by_their_first_character() {
        use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
        let name = format!("oip-server-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_ref(), "STOPPING=1").unwrap();
        let mut read = [0; 100];
        let len = systemd.recv(&mut read).unwrap();
        assert_eq!(&read[..len], b"STOPPING=1");
    }
}
