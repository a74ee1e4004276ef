//! The device runtime: what kernels that launch kernels call (dynamic parallelism).
//!
//! Owns the text of it and how a module gets it. NVIDIA's own is a library of machine code. Two functions in it are the
//! device's ([`crate::support::is_provided`]); all others are PTX.

use std::borrow::Cow;

/// The text; it defines every function of the runtime that is served.
pub const TEXT: &str = include_str!("device_runtime.ptx");
/// How the names of its functions begin.
pub const PREFIX: &str = "__cudaCDP2";
/// How the names of what is in it beside them begin.
pub const INTERNAL: &str = "__mica_";

/// In names of NVIDIA's device runtime.
const NVIDIAS: &[u8] = b"_cuda_device_runtime_cu_";

fn mentions(text: &[u8], name: &[u8]) -> bool {
    text.windows(name.len()).any(|part| part == name)
}

/// Whether a text is NVIDIA's device runtime, which a program carries beside its own code and which is not used.
pub fn is_nvidias(text: &[u8]) -> bool {
    mentions(text, NVIDIAS)
}

/// Whether a text calls the runtime.
pub fn is_called(text: &[u8]) -> bool {
    mentions(text, PREFIX.as_bytes()) && !is_nvidias(text)
}

/// A text of PTX with the device runtime, if it calls that.
///
/// # Errors
/// Why the two cannot be joined.
pub fn join(text: Cow<'_, [u8]>) -> Result<Cow<'_, [u8]>, String> {
    if !is_called(&text) {
        return Ok(text);
    }
    let own = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
    let texts = [own.trim_end_matches('\0').to_owned(), TEXT.to_owned()];
    // Whatever stays undefined is refused by name, as in any other module.
    let joined = mica_ptx::join(&texts, &|_| true).map_err(|error| error.to_string())?;
    Ok(Cow::Owned(joined.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::unsupported;

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn a_text_that_does_not_call_it_stays_as_it_is() {
        let text = format!("{HEAD}.visible .entry k() {{ ret; }}");
        let joined = join(Cow::Borrowed(text.as_bytes())).expect("joins");
        assert!(matches!(joined, Cow::Borrowed(_)));
    }

    #[test]
    fn all_of_it_can_be_run() {
        let module = mica_ptx::parse(TEXT.as_bytes()).expect("parses");
        assert_eq!(unsupported(&module), []);
        assert!(module.kernels().all(|(_, f)| f.name.starts_with(INTERNAL)));
    }

    #[test]
    fn what_it_lacks_is_named() {
        let text = format!(
            "{HEAD}.extern .func (.param .b32 r) __cudaCDP2DeviceSynchronize();
.visible .entry k() {{ {{ .param .b32 q; call (q), __cudaCDP2DeviceSynchronize; }} ret; }}"
        );
        let joined = join(Cow::Borrowed(text.as_bytes())).expect("joins");
        let module = mica_ptx::parse(&joined).expect("parses");
        let found = unsupported(&module);
        assert!(
            found[0].what.contains("`__cudaCDP2DeviceSynchronize`"),
            "{found:?}"
        );
    }
}
