//! How a program learns which virtual GPU it is in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::LinkError;

/// Mica's variables as they were when the library was loaded.
static REMEMBERED: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Remembers Mica's variables: a program may clear or change its environment before it first uses the GPU,
/// or while it does. For libraries, when they are loaded.
pub fn remember_environment() {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"MICA_");
    REMEMBERED.get_or_init(|| {
        std::env::vars_os()
            .filter(|(name, _)| is_ours(name))
            .collect()
    });
}

/// One of Mica's variables, as it was when the library was loaded, else as it is.
pub fn variable(name: &str) -> Option<OsString> {
    let remembered = REMEMBERED.get().into_iter().flatten();
    let mut of_name = remembered.filter(|(known, _)| known == name);
    match of_name.next() {
        Some((_, value)) => Some(value.clone()),
        None => std::env::var_os(name),
    }
}

/// The variable that asks for exact bounds of every access of a kernel.
pub const MEMCHECK: &str = "MICA_MEMCHECK";

/// Whether accesses of kernels are checked against exact bounds: the software GPU can, others leave it
/// to their own tools.
pub fn memcheck() -> bool {
    variable(MEMCHECK).is_some_and(|value| !value.is_empty() && value != "0")
}

/// The variable that tells a program that allocations of its virtual GPU are guarded.
pub const GUARD: &str = "MICA_GUARD";

/// Whether each allocation ends at an unmapped page, so that none may be a piece of another one.
pub fn guarded() -> bool {
    variable(GUARD).is_some_and(|value| !value.is_empty() && value != "0")
}

/// The folder in which a program in a container finds the socket of its virtual GPU. `mica cdi generate` has it mounted there.
/// Where this folder is, a program needs no variable: whoever clears the environment stays in the virtual GPU.
pub const CONTAINER_DIR: &str = "/run/mica-vgpu";

/// Whether this program is in a container that was given a virtual GPU, and no variable says otherwise.
pub fn in_container() -> bool {
    variable(Environment::SOCKET).is_none() && Path::new(CONTAINER_DIR).is_dir()
}

/// What `mica run` puts into a program's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Capability to join the virtual GPU; [`Environment::NO_TOKEN`] where the socket itself is the capability.
    pub token: [u8; 16],
}

impl Environment {
    /// The token of a program that has none: the socket of a container leads to one virtual GPU, whatever token is sent.
    pub const NO_TOKEN: [u8; 16] = [0; 16];

    /// Name of the variable with the socket's path.
    pub const SOCKET: &str = "MICA_HOST_SOCKET";
    /// Name of the variable with the token in hex.
    pub const TOKEN: &str = "MICA_TOKEN";

    /// Reads both variables, else looks for the folder of a container; `None` if this process is in no virtual GPU.
    pub fn read() -> Option<Result<Self, LinkError>> {
        let Some(socket) = variable(Self::SOCKET) else {
            return in_container().then(|| {
                Ok(Self {
                    socket: Path::new(CONTAINER_DIR).join("host.sock"),
                    token: Self::NO_TOKEN,
                })
            });
        };
        let token = match variable(Self::TOKEN) {
            Some(token) => parse_token(&token.to_string_lossy()),
            None => Some(Self::NO_TOKEN),
        };
        Some(match token {
            Some(token) => Ok(Self {
                socket: socket.into(),
                token,
            }),
            None => Err(LinkError::Token),
        })
    }

    /// The token the variable holds; `None` if it is not 32 hexadecimal digits.
    pub fn parse_token(hex: &str) -> Option<[u8; 16]> {
        parse_token(hex)
    }

    /// The token as the variable holds it.
    pub fn token_hex(token: &[u8; 16]) -> String {
        token.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn parse_token(hex: &str) -> Option<[u8; 16]> {
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut token = [0; 16];
    for (byte, pair) in token.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(token)
}
