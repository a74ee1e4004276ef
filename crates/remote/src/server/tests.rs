//! Streams over several connections, with TLS, and who may not continue them. The server echoes what it gets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::Mutex;

use super::*;
use crate::folder::KnownServer;
use crate::handover::{SessionId, Sessions};
use crate::identity::Identity;
use crate::listener;
use crate::resume::Redial;
use mica_tunnel::near::LinkStats;

type Log = Arc<Mutex<Vec<String>>>;

struct World {
    root: tempfile::TempDir,
    known: KnownServer,
    log: Log,
}

fn serve_echo(server: &Server, stream: TcpStream) -> Result<(), RemoteError> {
    let (carrier, name, client) = server.accept(stream)?;
    let visitor = Visitor {
        name,
        allowance: client.allowance,
        fingerprint: fingerprint(carrier.peer()),
        from: "here".into(),
    };
    let resume = server.terms();
    message::send(&carrier, &Answer::Session { resume })
        .map_err(RemoteError::network("the client is gone"))?;
    server.over_connections(carrier, &visitor, |stream| {
        let mut buffer = vec![0; 4096];
        while let Ok(got @ 1..) = stream.receive(&mut buffer) {
            if stream.send(&buffer[..got]).is_err() {
                break;
            }
        }
    });
    Ok(())
}

impl World {
    fn new(within: Duration) -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().join("server")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let known = KnownServer {
            address: listener.local_addr().unwrap().to_string(),
            certificate: hex(folder.identity().unwrap().certificate()),
        };
        let log = Log::default();
        let (said, refused) = (log.clone(), log.clone());
        let sessions = Arc::new(Sessions::default());
        let known_sessions = sessions.clone();
        let serve = move |stream: TcpStream, _| {
            let arrivals = Arrivals::new(known_sessions.attach().unwrap()).unwrap();
            let server = Server {
                folder: &folder,
                key: [5; 32],
                control: &|| Err("there is no daemon here".into()),
                log: &|line| said.lock().unwrap().push(line.into()),
                arrivals: Some(&arrivals),
                resume_within: within,
                upload_bytes: 0,
            };
            let _ = serve_echo(&server, stream);
        };
        let note = move |line| refused.lock().unwrap().push(line);
        std::thread::spawn(move || listener::run(&listener, &sessions, serve, note));
        Self { root, known, log }
    }

    /// A client that is paired.
    fn client(&self, name: &str) -> Arc<Identity> {
        let identity = Identity::create(None).unwrap();
        let known = KnownClient {
            certificate: hex(identity.certificate()),
            allowance: Allowance::default(),
            paired_at: now(),
        };
        let folder = Folder::at(self.root.path().join("server")).unwrap();
        folder.put_client(name, &known).unwrap();
        Arc::new(identity)
    }

    /// Begins a session.
    fn session(&self, identity: &Arc<Identity>, server: &KnownServer) -> (TlsCarrier, Redial) {
        let carrier = crate::client::connect(identity, server).unwrap();
        let terms = match message::receive(&carrier, 1 << 16).unwrap() {
            Answer::Session { resume } => resume,
            other => panic!("{other:?}"),
        };
        let stats = Arc::<LinkStats>::default();
        let redial = Redial::new(identity, server, &terms, &stats).unwrap();
        (carrier, redial)
    }

    fn logged(&self, words: &str) {
        for _ in 0..400 {
            if self
                .log
                .lock()
                .unwrap()
                .iter()
                .any(|line| line.contains(words))
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("{words:?} is not in {:?}", self.log.lock().unwrap());
    }
}

/// Carries connections to an address; the connections that are open.
fn relay(to: String) -> (String, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let open = Arc::<Mutex<Vec<TcpStream>>>::default();
    let kept = open.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(&to).unwrap();
            for (from, into) in [(&near, &far), (&far, &near)] {
                let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(got @ 1..) = from.read(&mut buffer) {
                        if into.write_all(&buffer[..got]).is_err() {
                            break;
                        }
                    }
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
            kept.lock().unwrap().extend([near, far]);
        }
    });
    (address, open)
}

#[test]
fn a_stream_goes_on_over_new_connections_and_loses_nothing() {
    let world = World::new(Duration::from_secs(20));
    let laptop = world.client("laptop");
    let (address, open) = relay(world.known.address.clone());
    let through = KnownServer {
        address,
        ..world.known.clone()
    };
    let (carrier, redial) = world.session(&laptop, &through);
    let stream = Resuming::new(Arc::new(carrier), Box::new(redial));
    for round in 0..40_u32 {
        let sent: Vec<u8> = (0..20_000).map(|at| (at * 7 + round) as u8).collect();
        stream.send(&sent).unwrap();
        if round % 8 == 3 {
            for connection in open.lock().unwrap().drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
        let mut back = vec![0; sent.len()];
        let mut filled = 0;
        while filled < back.len() {
            match stream.receive(&mut back[filled..]).unwrap() {
                0 => panic!("the stream ended"),
                got => filled += got,
            }
        }
        assert!(back == sent, "round {round}");
    }
    assert!(stream.breaks() >= 5, "{}", stream.breaks());
    world.logged("laptop came back");
    stream.close();
}

#[test]
fn a_session_is_of_one_certificate() {
    let world = World::new(Duration::from_secs(20));
    let (laptop, thief) = (world.client("laptop"), world.client("thief"));
    let (carrier, redial) = world.session(&laptop, &world.known);
    // The number was seen on the wire; another client that is paired, too, and one that nobody knows.
    let stranger = Arc::new(Identity::create(None).unwrap());
    for other in [thief, stranger] {
        let stolen = redial.with_identity(&other);
        assert!(stolen.again(0).is_err());
        world.logged("it wanted a session of laptop");
    }
    // A number that is no session's.
    let wrong: SessionId = [9; 16];
    let error = redial.with_session(wrong).again(0).err().unwrap();
    assert!(error.to_string().contains("ended the session"), "{error}");
    // The session did not notice.
    carrier.send(b"still here").unwrap();
    let mut back = [0; 10];
    let got = carrier.receive(&mut back).unwrap();
    assert_eq!(&back[..got], b"still here");
}

#[test]
fn what_a_session_keeps_after_its_client_was_revoked_goes_with_it() {
    let world = World::new(Duration::ZERO);
    let (laptop, other) = (world.client("laptop"), world.client("other"));
    let folder = Folder::at(world.root.path().join("server")).unwrap();
    let kept_for = |client: &Identity| {
        let client = fingerprint(client.certificate());
        [folder.modules(&client), folder.uploads(&client)]
    };
    let keep = |client: &Identity| {
        for folder in kept_for(client) {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("kept"), "weights").unwrap();
        }
    };
    let is_kept = |client: &Identity| kept_for(client).map(|folder| folder.exists());
    let (carrier, _) = world.session(&laptop, &world.known);
    keep(&laptop);
    keep(&other);
    assert!(folder.remove_client("laptop").unwrap());
    assert_eq!(is_kept(&laptop), [false; 2]);
    // The session still runs, and loads a module.
    keep(&laptop);
    carrier.close();
    for _ in 0..400 {
        if is_kept(&laptop) == [false; 2] {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    assert_eq!(is_kept(&laptop), [false; 2]);
    assert_eq!(is_kept(&other), [true; 2]);
}

#[test]
fn a_session_that_was_waited_for_is_gone() {
    let world = World::new(Duration::from_millis(300));
    let laptop = world.client("laptop");
    let (carrier, redial) = world.session(&laptop, &world.known);
    carrier.close();
    std::thread::sleep(Duration::from_millis(1500));
    let error = redial.again(0).err().unwrap();
    assert!(error.to_string().contains("ended the session"), "{error}");
    world.logged("its session has ended");
}
