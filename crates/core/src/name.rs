//! What a lock may be called.
//!
//! A name is a path of one or more segments joined by `/`, such as `batch/nightly`. It is UTF-8
//! (the types see to that), 1 to [`LOCK_NAME_BYTES_MAX`] bytes long, and compared byte for byte:
//! nothing is folded, normalised or trimmed. Refused are
//!
//! - the empty name;
//! - a slash at the front or at the end, or two in a row: each makes an empty segment, and `/a`
//!   beside `a` would be two locks that people take for one;
//! - the segments `.` and `..`, which other programs would resolve;
//! - control characters (Unicode category Cc: U+0000–U+001F and U+007F–U+009F), so that a name can
//!   be printed on one line.
//!
//! Everything else is allowed: spaces, colons, any script.

use crate::{LOCK_NAME_BYTES_MAX, Limit, Refusal};

/// Says whether `name` can be the name of a lock.
///
/// # Errors
///
/// [`Refusal::LimitReached`] with [`Limit::LockNameBytes`] if it is too long, otherwise
/// [`Refusal::InvalidName`]. Trying again doesn't help.
pub fn check_lock_name(name: &str) -> Result<(), Refusal> {
    if name.len() > LOCK_NAME_BYTES_MAX {
        return Err(Refusal::limit(Limit::LockNameBytes));
    }
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
    if name.chars().any(char::is_control) || !name.split('/').all(is_segment) {
        return Err(Refusal::InvalidName);
    }
    Ok(())
}
