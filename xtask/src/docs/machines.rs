//! Pages that tell of several machines: a block with `on=NAME` runs on the machine of that name.
//!
//! All of them are this one. Each has a home, a daemon and keys of its own. `workstation.lan:9731` stands for a free port of this
//! machine, `mica1-…` in a command for the pairing string that was printed last. A block with `stays=yes` has one command that goes on
//! while the page does.

use std::net::TcpListener;

use anyhow::Result;

use super::blocks::Block;

/// The name and port that pages use for a server.
const HOST: &str = "workstation.lan";
const PORT: &str = ":9731";
/// What begins a pairing string.
const INVITE: &str = "mica1-";
/// Tenths of a second until a command that goes on has printed what the page says.
const PATIENCE: u32 = 300;

/// How a page's commands reach its machines.
pub(super) struct Machines {
    /// The port that stands for a server's.
    port: u16,
}

/// Where a step runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The machine; the page's own where none is named.
    pub(super) on: Option<String>,
    /// Whether the command goes on.
    pub(super) stays: bool,
}

impl Place {
    /// Where the steps of a block run.
    pub(super) fn of(block: &Block<'_>) -> Self {
        Self {
            on: block.attribute("on").map(str::to_owned),
            stays: block.attribute("stays") == Some("yes"),
        }
    }
}

impl Machines {
    pub(super) fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        Ok(Self { port })
    }

    /// Shell functions that the commands below need.
    pub(super) fn prologue(scratch: &str) -> String {
        format!(
            "__scratch='{scratch}'\n\
             __on() {{ export HOME=\"$__scratch/$1\" MICA_RUNTIME_DIR=\"$__scratch/$1-run\"\n\
             export MICA_REMOTE_DIR=\"$__scratch/$1-keys\"; cd \"$HOME\"; }}\n\
             __stays() {{ bash -c \"$1\" >\"$__scratch/stays\" 2>&1 &\n\
             for __ in $(seq {PATIENCE}); do [ $(wc -l <\"$__scratch/stays\") -ge $2 ] && break; sleep 0.1; done\n\
             cat \"$__scratch/stays\"; }}\n\
             trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"
        )
    }

    /// The command of a step in the page's shell; `lines` is how many it prints.
    pub(super) fn command(&self, command: &str, place: &Place, lines: usize) -> String {
        let on = place.on.as_deref().unwrap_or("home");
        let mut text = match place.on {
            None => command.to_owned(),
            Some(_) => self.to_this_machine(command),
        };
        if place.stays {
            let quoted = text.replace('\'', "'\\''");
            text = format!("__stays '{quoted}' {lines}");
        }
        format!("__on {on}\n{text}")
    }

    fn to_this_machine(&self, command: &str) -> String {
        let here = format!("127.0.0.1:{}", self.port);
        let words = command.split(' ').map(|word| match word {
            word if word.starts_with(INVITE) => {
                "\"$(grep -o 'mica1-[^ ]*' \"$__scratch/log\" | tail -n 1)\"".to_owned()
            }
            word => word
                .replace(&format!("0.0.0.0{PORT}"), &here)
                .replace(&format!("{HOST}{PORT}"), &here)
                .replace(HOST, &here),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// What a step printed, as the page would have it.
    pub(super) fn output(&self, output: &str, place: &Place) -> String {
        match place.on {
            None => output.to_owned(),
            Some(_) => output
                .replace(&format!(":{}", self.port), PORT)
                .replace("127.0.0.1", HOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_machines_become_this_one_and_back() {
        let machines = Machines { port: 4567 };
        let place = Place {
            on: Some("laptop".into()),
            stays: false,
        };
        let run = machines.command("mica run --on workstation.lan -- a", &place, 0);
        assert_eq!(run, "__on laptop\nmica run --on 127.0.0.1:4567 -- a");
        let pair = machines.command("mica remote pair mica1-x", &place, 0);
        assert!(pair.contains("pair \"$(grep"), "{pair}");
        let said = machines.output("at 127.0.0.1:4567, 127.0.0.1", &place);
        assert_eq!(said, "at workstation.lan:9731, workstation.lan");
        let plain = machines.command("echo workstation.lan", &Place::default(), 0);
        assert_eq!(plain, "__on home\necho workstation.lan");
    }
}
