//! A program that knows every byte of its memory.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use mica_limits::{Environment, open_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

use crate::common;
use crate::support::MIB;

pub(crate) const PIECES: u64 = 6;
pub(crate) const PIECE_BYTES: u64 = 2 * MIB;
const WORDS: u64 = PIECE_BYTES / 4;

/// Adds a number to each word.
const PTX: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 count, .param .u32 value)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [at];
    ld.param.u32 %r0, [count];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r0;
    @%p bra done;
    mul.wide.u32 %d1, %r5, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r6, [%d2];
    add.u32 %r7, %r6, %r1;
    st.global.u32 [%d2], %r7;
done:
    ret;
}
\0";

/// A program whose memory holds what it should.
pub(crate) struct Program {
    client: Arc<SessionClient>,
    context: u64,
    stream: u64,
    module: u64,
    pieces: Vec<u64>,
    seed: u32,
    added: u32,
}

impl Program {
    pub(crate) fn begin(environment: &Environment, seed: u32) -> Result<Self, SessionError> {
        let socket = open_session(environment).map_err(|e| SessionError::Ended(e.to_string()))?;
        let client = Arc::new(SessionClient::connect(socket.1, "test")?);
        let new = client.call(&ContextCreate { flags: 0 })?;
        let module = client.module_load(new.context, PTX, false)?.module;
        let mut program = Self {
            client,
            context: new.context,
            stream: new.default_stream,
            module,
            pieces: Vec::new(),
            seed,
            added: 0,
        };
        for index in 0..PIECES {
            let (context, bytes) = (program.context, PIECE_BYTES);
            let at = program.client.call(&MemoryAlloc { context, bytes })?.value;
            program.pieces.push(at);
            let contents = program.expected(index);
            program.client.write(program.stream, at, &contents)?;
        }
        Ok(program)
    }

    fn expected(&self, piece: u64) -> Vec<u8> {
        let mut word =
            (self.seed.wrapping_mul(0x9e37_79b9) ^ piece as u32).wrapping_add(self.added);
        let mut bytes = vec![0; PIECE_BYTES as usize];
        for place in bytes.chunks_exact_mut(4) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(1);
        }
        bytes
    }

    /// Adds one to every word of every piece.
    pub(crate) fn work(&mut self) -> Result<(), SessionError> {
        for at in &self.pieces {
            let launch = Launch {
                stream: self.stream,
                module: self.module,
                kernel: 0,
                grid: [(WORDS / 256) as u32, 1, 1],
                block: [256, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
            };
            self.client
                .launch(&launch, &common::params(*at, WORDS as u32, 1))?;
        }
        let stream = self.stream;
        self.client.call(&StreamSynchronize { stream })?;
        self.added += 1;
        Ok(())
    }

    /// Whether one piece holds what it should, byte by byte.
    pub(crate) fn check(&self, piece: u64) -> Result<(), SessionError> {
        let mut seen = vec![0; PIECE_BYTES as usize];
        self.client
            .read(self.stream, self.pieces[piece as usize], &mut seen)?;
        assert!(
            seen == self.expected(piece),
            "piece {piece} of tenant {} after {}",
            self.seed,
            self.added
        );
        Ok(())
    }

    pub(crate) fn check_all(&self) -> Result<(), SessionError> {
        (0..PIECES).try_for_each(|piece| self.check(piece))
    }
}

/// Works until `stop`, counting rounds; begins anew when its worker was killed.
pub(crate) fn tenant(
    environment: &Environment,
    seed: u32,
    stop: &AtomicBool,
    round_done: impl Fn(),
) {
    while !stop.load(SeqCst) {
        let lived = Program::begin(environment, seed).and_then(|mut program| {
            while !stop.load(SeqCst) {
                program.work()?;
                program.check(u64::from(program.added) % PIECES)?;
                round_done();
            }
            program.check_all()
        });
        if let Err(error) = lived {
            assert!(!matches!(error, SessionError::Refused { .. }), "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
