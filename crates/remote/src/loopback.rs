//! Both ends of a connection in one process, for tests and benchmarks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use crate::RemoteError;
use crate::hello::{HELLO_BYTES, Purpose, Verdict, server_hello};
use crate::identity::{Identity, SERVER_NAME};
use crate::setup::{client_config, server_config, setup};
use crate::tls::{Peer, TlsCarrier};

fn listen() -> Result<(TcpListener, String), RemoteError> {
    let failed = || RemoteError::network("listening on loopback");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?.to_string();
    Ok((listener, address))
}

/// Two carriers: a client's, and the server's that accepts anybody with a certificate.
///
/// # Errors
/// Sockets or keys cannot be made.
pub fn pair() -> Result<(TlsCarrier, TlsCarrier), RemoteError> {
    pair_through(|address| address)
}

/// As [`pair`]; the client connects to the address that is made of the server's.
pub(crate) fn pair_through(
    through: impl FnOnce(String) -> String,
) -> Result<(TlsCarrier, TlsCarrier), RemoteError> {
    let (client, server) = (Identity::create(None)?, Identity::create(None)?);
    let known = Peer::Known(vec![server.certificate().clone()]);
    let (listener, address) = listen()?;
    let address = through(address);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| -> Result<TlsCarrier, RemoteError> {
            let failed = || RemoteError::network("accepting on loopback");
            let (mut tcp, _) = listener.accept().map_err(failed())?;
            tcp.read_exact(&mut [0; HELLO_BYTES]).map_err(failed())?;
            let answer = server_hello(Verdict::GoOn);
            tcp.write_all(&answer).map_err(failed())?;
            TlsCarrier::accept(tcp, &server, &Peer::Anybody)
        });
        let near = TlsCarrier::connect(&address, Purpose::Use, &client, &known)?;
        let far = (accepting.join()).map_err(|_| RemoteError::Protocol("no server".into()))??;
        Ok((near, far))
    })
}

/// The same connection by the stream of rustls: what is written to the first is read from the second.
///
/// # Errors
/// As [`pair`].
pub fn rustls_pair() -> Result<(impl Write + Send, impl Read + Send), RemoteError> {
    let failed = || RemoteError::network("connecting on loopback");
    let (client, server) = (Identity::create(None)?, Identity::create(None)?);
    let known = Peer::Known(vec![server.certificate().clone()]);
    let (listener, address) = listen()?;
    let near = TcpStream::connect(address).map_err(failed())?;
    let (far, _) = listener.accept().map_err(failed())?;
    let (config, name) = (client_config(&client, &known)?, SERVER_NAME.try_into());
    let name: ServerName<'static> = name.map_err(setup)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(setup)?;
    let near = StreamOwned::new(connection, near);
    let config = Arc::new(server_config(&server, &Peer::Anybody)?);
    let connection = ServerConnection::new(config).map_err(setup)?;
    Ok((near, StreamOwned::new(connection, far)))
}
