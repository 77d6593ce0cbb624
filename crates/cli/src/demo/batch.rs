//! The nightly batch and the trucks: what must not happen twice.

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// The table that the batch writes: it remembers the newest token that it has seen, and refuses
/// older ones. That is the whole of fencing, on the resource's side.
#[derive(Default)]
pub(crate) struct Trucks {
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    newest_token: u64,
    written_by: Vec<(String, u64)>,
}

impl Trucks {
    /// Assigns the trucks in the name of `who`.
    ///
    /// # Errors
    ///
    /// The token is older than one that was seen before.
    pub(crate) fn assign(&self, who: &str, token: u64) -> Result<()> {
        let mut rows = self.rows.lock();
        if token < rows.newest_token {
            bail!("token {token} is older than {}", rows.newest_token);
        }
        rows.newest_token = token;
        rows.written_by.push((who.to_owned(), token));
        Ok(())
    }

    /// Who has assigned the trucks so far, in order.
    pub(crate) fn written_by(&self) -> Vec<String> {
        self.rows.lock().written_by.iter().map(|(who, _)| who.clone()).collect()
    }
}
