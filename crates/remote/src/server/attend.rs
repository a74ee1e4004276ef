//! The connection that keeps a virtual GPU: while it lives, or comes back in time, so does the virtual GPU.

use std::sync::{Arc, Mutex, PoisonError};

use mica_control::api::{Created, LinkInfo, LinkReport};
use mica_control::client::ControlClient;
use mica_limits::Environment;
use mica_tunnel::{Carrier, SILENCE};

use super::{Server, Visitor};
use crate::RemoteError;
use crate::message::{self, Answer, MOST_REQUEST_BYTES, Request};
use crate::resume::Await;
use crate::ticket;
use crate::tls::TlsCarrier;

/// The connection that keeps a virtual GPU.
struct Current(Mutex<Arc<TlsCarrier>>);

impl Current {
    fn get(&self) -> Arc<TlsCarrier> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, carrier: TlsCarrier) -> Arc<TlsCarrier> {
        let carrier = Arc::new(carrier);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&carrier);
        carrier
    }
}

impl Server<'_> {
    /// Keeps a virtual GPU while the connection lives.
    pub(super) fn run(
        &self,
        carrier: TlsCarrier,
        visitor: &Visitor,
        control: &ControlClient,
        created: Created,
    ) -> Result<(), RemoteError> {
        let name = created.name.clone();
        let (client, from) = (&visitor.name, &visitor.from);
        (self.log)(&format!("{client} at {from} uses virtual GPU {name}"));
        let awaited = Await::new(self.resume_within);
        let current = Current(Mutex::new(Arc::new(carrier)));
        let result = std::thread::scope(|scope| {
            scope.spawn(|| self.take_arrivals(visitor, &awaited, &|| current.get().close()));
            let result = self.attend(&current, &awaited, visitor, control, created);
            // Sessions that are still there lose it with the connection that it belongs to.
            let _ = control.remove(&name, true);
            self.stop_arrivals();
            result
        });
        let how = match &result {
            Ok(()) => "ended".into(),
            Err(error) => format!("was lost: {error}"),
        };
        (self.log)(&format!(
            "{client} at {from} is done with {name}: the connection {how}"
        ));
        Ok(())
    }

    /// Answers the client until it ends, and takes its next connection where one is lost.
    fn attend(
        &self,
        current: &Current,
        awaited: &Await,
        visitor: &Visitor,
        control: &ControlClient,
        created: Created,
    ) -> Result<(), RemoteError> {
        let gone = || RemoteError::network("the client is gone");
        let peer = format!("{} at {}", visitor.name, visitor.from);
        let mut shown = ShownLink {
            control,
            vgpu: created.name.clone(),
            token: created.token.clone(),
            last: None,
        };
        let running = self.running(visitor, control, created)?;
        let mut carrier = current.get();
        message::send(&*carrier, &running).map_err(gone())?;
        carrier.expect_within(SILENCE)?;
        loop {
            let request = match message::receive(&*carrier, MOST_REQUEST_BYTES) {
                Ok(request) => request,
                Err(RemoteError::Network { source, .. }) => {
                    carrier.close();
                    let (again, _) = awaited.next(0, &source).map_err(gone())?;
                    carrier = current.set(again);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (answer, link) = match request {
                Request::End => return Ok(()),
                Request::Ping {
                    round_trip_us,
                    bytes_per_second,
                    resumed,
                    saved_bytes,
                } => {
                    let link = LinkInfo {
                        peer: peer.clone(),
                        round_trip_us,
                        bytes_per_second,
                        resumed_total: resumed,
                        saved_bytes_total: saved_bytes,
                    };
                    (Answer::Pong, Some(link))
                }
                other => (tell(control, &shown.vgpu, &other), None),
            };
            // The client asks again over its next connection.
            let _ = message::send(&*carrier, &answer);
            // After the answer, whose time the client measures.
            if let Some(link) = link {
                shown.show(link);
            }
            // A client that was revoked meanwhile is served no longer.
            if self.folder.client_of(carrier.peer())?.is_none() {
                return Err(RemoteError::Refused("the client was revoked".into()));
            }
        }
    }

    /// What the client must know of its virtual GPU. The token stays on this machine: the client gets a ticket for it.
    fn running(
        &self,
        visitor: &Visitor,
        control: &ControlClient,
        mut created: Created,
    ) -> Result<Answer, RemoteError> {
        let unreadable = || RemoteError::Protocol("the daemon's token cannot be read".into());
        let token = Environment::parse_token(&created.token).ok_or_else(unreadable)?;
        let gpus = control.gpus().unwrap_or_default();
        let gpu = gpus.iter().find(|gpu| gpu.index == created.gpu);
        let device_bytes = gpu.map_or(0, |gpu| gpu.memory_total_bytes);
        created.token.clear();
        created.host_socket.clear();
        Ok(Answer::Running {
            ticket: ticket::issue(&self.key, &visitor.fingerprint, &token),
            created: Box::new(created),
            device_bytes,
            resume: self.terms(),
        })
    }
}

/// What the daemon shows of a client's connection.
struct ShownLink<'a> {
    control: &'a ControlClient,
    vgpu: String,
    token: String,
    last: Option<LinkInfo>,
}

impl ShownLink<'_> {
    /// Tells the daemon of a change.
    fn show(&mut self, link: LinkInfo) {
        if self.last.as_ref() == Some(&link) {
            return;
        }
        let report = LinkReport {
            token: self.token.clone(),
            link: link.clone(),
        };
        let _ = self.control.report_link(&self.vgpu, &report);
        self.last = Some(link);
    }
}

/// Answers what is asked of a virtual GPU that is there.
fn tell(control: &ControlClient, name: &str, request: &Request) -> Answer {
    match request {
        Request::Describe => {
            let info = control.get(name).ok();
            let vgpu = serde_json::to_value(info).unwrap_or_default();
            Answer::Described { vgpu }
        }
        Request::Events => {
            let mut events = control.past_events_of(Some(name)).unwrap_or_default();
            // The last ones say why.
            let first = events.len().saturating_sub(200);
            events.drain(..first);
            Answer::Events { events }
        }
        _ => Answer::Refused {
            why: "this connection has its virtual GPU".into(),
        },
    }
}
