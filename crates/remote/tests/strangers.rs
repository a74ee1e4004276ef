//! Who is let in, and who is not: real connections on this machine, without a daemon.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mica_remote::client;
use mica_remote::folder::{Allowance, Folder, Invitation, KnownClient, KnownServer, now};
use mica_remote::handover::{Arrivals, Sessions};
use mica_remote::hello::{HELLO_BYTES, Purpose, client_hello};
use mica_remote::identity::Identity;
use mica_remote::invite::{Invite, secret};
use mica_remote::message::{self, Answer, Request};
use mica_remote::server::Server;
use mica_remote::tls::{Peer, TlsCarrier};
use mica_remote::{RemoteError, listener};
use mica_tunnel::Carrier;

type Log = Arc<Mutex<Vec<String>>>;

struct World {
    folder: tempfile::TempDir,
    address: String,
    log: Log,
}

fn folder(path: &Path, name: &str) -> Folder {
    Folder::at(path.join(name)).unwrap()
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let log = Log::default();
        let (own, said, refused) = (folder(root.path(), "server"), log.clone(), log.clone());
        let sessions = Arc::new(Sessions::default());
        let known = sessions.clone();
        let serve = move |stream: TcpStream, purpose| {
            let arrivals = Arrivals::new(known.attach().unwrap()).unwrap();
            let server = Server {
                folder: &own,
                key: [5; 32],
                control: &|| Err("there is no daemon here".into()),
                log: &|line| said.lock().unwrap().push(line.into()),
                arrivals: Some(&arrivals),
                resume_within: Duration::from_secs(5),
                upload_bytes: 0,
            };
            if let Err(error) = server.serve(stream, purpose) {
                said.lock().unwrap().push(format!("refused: {error}"));
            }
        };
        let note = move |line| refused.lock().unwrap().push(line);
        std::thread::spawn(move || listener::run(&listener, &sessions, serve, note));
        Self {
            folder: root,
            address,
            log,
        }
    }

    fn server(&self) -> Folder {
        folder(self.folder.path(), "server")
    }

    fn client(&self, name: &str) -> Folder {
        folder(self.folder.path(), name)
    }

    fn invite(&self, client: &str, minutes: i64) -> Invite {
        let secret = secret().unwrap();
        let invitation = Invitation {
            client: client.into(),
            allowance: Allowance::default(),
            until: now().saturating_add_signed(60 * minutes),
        };
        self.server().put_invitation(&secret, &invitation).unwrap();
        Invite {
            address: self.address.clone(),
            fingerprint: self.server().identity().unwrap().fingerprint(),
            secret,
        }
    }

    fn known(&self) -> KnownServer {
        let server = self.client("laptop").servers().unwrap();
        server.into_iter().next().unwrap().1
    }

    /// Waits until the log has a line with these words.
    fn logged(&self, words: &str) {
        for _ in 0..400 {
            let log = self.log.lock().unwrap();
            if log.iter().any(|line| line.contains(words)) {
                return;
            }
            drop(log);
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("{words:?} is not in {:?}", self.log.lock().unwrap());
    }
}

#[test]
fn a_pairing_string_works_once_and_before_it_expires() {
    let world = World::new();
    let laptop = world.client("laptop");
    let invite = world.invite("laptop", 5);
    assert_eq!(client::pair(&laptop, &invite, "box").unwrap(), "laptop");
    let status = client::status(&laptop.identity().unwrap(), &world.known());
    assert_eq!(status.unwrap().2, "laptop");
    // Again, expired, another server's, and guessed.
    let thief = world.client("thief");
    let late = world.invite("thief", -5);
    let mut guessed = world.invite("thief", 5);
    guessed.secret[3] ^= 1;
    for wrong in [&invite, &late, &guessed] {
        let error = client::pair(&thief, wrong, "box").unwrap_err();
        assert!(error.to_string().contains("not valid"), "{error}");
    }
    world.logged("its pairing string is not valid");
    let mut elsewhere = world.invite("thief", 5);
    elsewhere.fingerprint[0] ^= 1;
    let error = client::pair(&thief, &elsewhere, "box").unwrap_err();
    assert!(error.to_string().contains("not the paired one"), "{error}");
    assert!(thief.servers().unwrap().is_empty());
    assert_eq!(world.server().clients().unwrap().len(), 1);
}

#[test]
fn strangers_expired_and_revoked_clients_are_refused() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    let known = world.known();
    let refused = |identity: &Identity| {
        let error = client::status(identity, &known).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("does not accept") || text.contains("closed") || text.contains("lost"),
            "{text}"
        );
    };
    refused(&Identity::create(None).unwrap());
    world.logged("refused: ");
    // A certificate that was paired and has expired.
    let expired = Identity::create(Some(2021)).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let client = KnownClient {
        certificate: hex(expired.certificate()),
        allowance: Allowance::default(),
        paired_at: now(),
    };
    world.server().put_client("old", &client).unwrap();
    refused(&expired);
    world.logged("Expired");
    // One that was paired and is revoked.
    let own = laptop.identity().unwrap();
    client::status(&own, &known).unwrap();
    assert!(world.server().remove_client("laptop").unwrap());
    refused(&own);
    // A server that is not the one that was paired.
    let other = World::new();
    client::pair(&other.client("someone"), &other.invite("someone", 5), "box").unwrap();
    let moved = KnownServer {
        address: other.address.clone(),
        ..known.clone()
    };
    let error = client::status(&own, &moved).unwrap_err();
    assert!(error.to_string().contains("not the paired one"), "{error}");
}

#[test]
fn a_ticket_of_another_client_is_refused_and_so_is_one_of_nobody() {
    let world = World::new();
    for name in ["laptop", "thief"] {
        client::pair(&world.client(name), &world.invite(name, 5), "box").unwrap();
    }
    let known = world.known();
    let laptop = world.client("laptop").identity().unwrap();
    let theirs = mica_remote::ticket::issue(&[5; 32], &laptop.fingerprint(), &[1; 16]);
    let thief = world.client("thief").identity().unwrap();
    for ticket in [theirs, "00".repeat(48), String::new()] {
        let carrier = client::connect(&thief, &known).unwrap();
        let asked = client::ask(&carrier, &Request::Session { ticket, pid: 1 });
        assert!(matches!(asked, Err(RemoteError::Refused(_))), "{asked:?}");
    }
    world.logged("another client's");
}

#[test]
fn what_is_recorded_cannot_be_replayed() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    // A wire-tapper between the two.
    let tap = TcpListener::bind("127.0.0.1:0").unwrap();
    let tapped = KnownServer {
        address: tap.local_addr().unwrap().to_string(),
        ..world.known()
    };
    let address = world.address.clone();
    let tapping = std::thread::spawn(move || {
        let (near, _) = tap.accept().unwrap();
        let far = TcpStream::connect(address).unwrap();
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let back = std::thread::spawn(move || {
            let (mut from, mut to) = (far, near);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut recorded, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            recorded.extend_from_slice(&buffer[..got]);
            if to.write_all(&buffer[..got]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        back.join().unwrap();
        recorded
    });
    client::status(&laptop.identity().unwrap(), &tapped).unwrap();
    let recorded = tapping.join().unwrap();
    assert!(recorded.len() > 500);
    let mut replay = TcpStream::connect(&world.address).unwrap();
    replay
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let _ = replay.write_all(&recorded);
    let mut answer = Vec::new();
    let _ = replay.read_to_end(&mut answer);
    world.logged("refused: no TLS with the other side");
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains("status"), "nothing is answered in clear");
}

#[test]
fn garbage_gets_no_answer_and_the_server_goes_on() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    let mut state = 7_u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    for round in 0..12 {
        let mut stream = TcpStream::connect(&world.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let noise: Vec<u8> = (0..2000).map(|_| random()).collect();
        // Half of them say hello first.
        if round % 2 == 0 {
            let _ = stream.write_all(&client_hello(Purpose::Use));
        }
        let _ = stream.write_all(&noise);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let most = if round % 2 == 0 { HELLO_BYTES + 64 } else { 0 };
        assert!(answer.len() <= most, "{} bytes", answer.len());
    }
    world.logged("not the hello of a Mica client");
    client::status(&laptop.identity().unwrap(), &world.known()).unwrap();
}

#[test]
fn a_known_client_that_talks_nonsense_behind_tls_is_refused() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    let identity = laptop.identity().unwrap();
    for bytes in [
        &b"\xff\xff\xff\xff"[..],
        b"\x02\x00\x00\x00{}",
        b"\x00\x00\x00\x00",
    ] {
        let carrier = client::connect(&identity, &world.known()).unwrap();
        carrier.send(bytes).unwrap();
        let answer: Result<Answer, _> = message::receive(&carrier, 1 << 16);
        assert!(!matches!(answer, Ok(Answer::Session { .. })), "{answer:?}");
    }
    world.logged("a message of 4294967295 bytes");
    // Without a daemon a good request is refused with a reason.
    let carrier = client::connect(&identity, &world.known()).unwrap();
    let asked = client::ask(
        &carrier,
        &Request::Run {
            spec: Box::default(),
            gpu: None,
            command: "x".into(),
        },
    );
    assert!(asked.unwrap_err().to_string().contains("no daemon here"));
}

#[test]
fn nobody_resumes_a_session_that_is_not_there() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    let mut tcp = TcpStream::connect(&world.address).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let error = mica_remote::hello::shake(&mut tcp, Purpose::Resume([7; 16])).unwrap_err();
    assert!(error.to_string().contains("ended the session"), "{error}");
    world.logged("its session has ended");
}

#[test]
fn a_peer_without_a_certificate_is_refused() {
    let world = World::new();
    let laptop = world.client("laptop");
    client::pair(&laptop, &world.invite("laptop", 5), "box").unwrap();
    let mut roots = rustls::RootCertStore::empty();
    let server = world.server().identity().unwrap();
    roots.add(server.certificate().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    for purpose in [Purpose::Use, Purpose::Pair] {
        let mut tcp = TcpStream::connect(&world.address).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        mica_remote::hello::shake(&mut tcp, purpose).unwrap();
        let name = "mica".try_into().unwrap();
        let mut connection = rustls::ClientConnection::new(config.clone(), name).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut tcp);
        let _ = stream.write_all(b"\x11\x00\x00\x00{\"ask\":\"status\"}");
        let mut answer = Vec::new();
        assert!(stream.read_to_end(&mut answer).is_err() && answer.is_empty());
    }
    world.logged("showed no certificate");
}

#[test]
fn who_asks_a_byte_at_a_time_is_not_waited_for() {
    let world = World::new();
    let (stranger, server) = (world.client("stranger"), world.server());
    let pinned = Peer::Pinned(server.identity().unwrap().fingerprint());
    let identity = stranger.identity().unwrap();
    let carrier = TlsCarrier::connect(&world.address, Purpose::Pair, &identity, &pinned).unwrap();
    carrier.send(&16_000_u32.to_le_bytes()).unwrap();
    // Each byte comes long before the server takes the connection for silent.
    let bytes = (0..16_000).take_while(|_| {
        std::thread::sleep(Duration::from_millis(100));
        carrier.send(b" ").is_ok()
    });
    assert!(
        bytes.count() < 16_000 / 2,
        "the server has listened to the end"
    );
    world.logged("refused: ");
}
