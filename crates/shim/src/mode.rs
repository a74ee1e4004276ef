//! Decides once, at the first call of any entry point, what stands behind the symbols.

use std::sync::Once;

use crate::{direct, isolated, trace};

/// Name of the variable that chooses the mode: `direct` or `isolated`.
const MODE: &str = "MICA_MODE";

static RESOLVED: Once = Once::new();

/// Fills all slots; later calls return at once.
pub(crate) fn resolve_once() {
    RESOLVED.call_once(|| {
        match std::env::var(MODE).as_deref() {
            Ok("isolated") => isolated::install(),
            _ => direct::install(),
        }
        trace::install();
    });
}
