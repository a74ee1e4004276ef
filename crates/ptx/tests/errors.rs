//! Error messages, whole: each file in `tests/errors` is a text and the message it must give.
//!
//! `BLESS=1 cargo test -p mica-ptx --test errors` rewrites the expectations.

mod golden;

#[test]
fn messages_are_as_written() {
    golden::check("errors", 20, |text| {
        match mica_ptx::parse(text.as_bytes()) {
            Ok(_) => "accepted".to_string(),
            Err(e) => e.to_string(),
        }
    });
}
