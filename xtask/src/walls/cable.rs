//! A cable that can be cut: carries connections to an address, and falls silent or closes them when told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

/// How often what waits looks whether the cable is whole.
const LOOK: Duration = Duration::from_millis(2);

/// A cable; it ends with the process.
pub(super) struct Cable {
    /// Where the near end is.
    pub(super) address: String,
    inside: Arc<Inside>,
}

struct Inside {
    far: String,
    /// Nothing passes in any direction, and nobody is told.
    is_cut: AtomicBool,
    open: Mutex<Vec<Arc<Connection>>>,
}

struct Connection {
    near: TcpStream,
    far: TcpStream,
    /// Never carries anything again, and is not closed either.
    is_silent: AtomicBool,
}

impl Cable {
    /// A cable to an address.
    pub(super) fn to(far: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let inside = Arc::new(Inside {
            far: far.into(),
            is_cut: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&inside);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let inside = Arc::clone(&accepting);
                std::thread::spawn(move || inside.connect(near));
            }
        });
        Ok(Self { address, inside })
    }

    /// From here on nothing passes.
    pub(super) fn cut(&self) {
        self.inside.is_cut.store(true, Release);
    }

    /// Connections are carried again. `keep` says whether those from before the cut are, as after a short cut; else they stay
    /// silent, as after a change of networks.
    pub(super) fn mend(&self, keep: bool) {
        if !keep {
            for connection in self.inside.open().iter() {
                connection.is_silent.store(true, Release);
            }
        }
        self.inside.is_cut.store(false, Release);
    }

    /// Closes all connections; new ones are carried.
    pub(super) fn close_all(&self) {
        for connection in self.inside.open().drain(..) {
            connection.close();
        }
    }
}

impl Connection {
    fn close(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

impl Inside {
    fn open(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while_cut(&self) {
        while self.is_cut.load(Acquire) {
            std::thread::sleep(LOOK);
        }
    }

    fn connect(self: Arc<Self>, near: TcpStream) {
        self.wait_while_cut();
        let Ok(far) = TcpStream::connect(&self.far) else {
            return;
        };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let is_silent = AtomicBool::new(false);
        let connection = Arc::new(Connection {
            near,
            far,
            is_silent,
        });
        self.open().push(Arc::clone(&connection));
        let (inside, other) = (Arc::clone(&self), Arc::clone(&connection));
        std::thread::spawn(move || inside.carry(&other, &other.far, &other.near));
        self.carry(&connection, &connection.near, &connection.far);
    }

    /// Carries one direction until it ends.
    fn carry(&self, connection: &Connection, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = vec![0; 128 << 10];
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            self.wait_while_cut();
            if connection.is_silent.load(Acquire) || to.write_all(&buffer[..got]).is_err() {
                break;
            }
        }
        self.wait_while_cut();
        // The end of a stream does not pass a cable that is cut either.
        if !connection.is_silent.load(Acquire) {
            connection.close();
        }
    }
}
