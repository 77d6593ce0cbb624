//! What the program logs about itself, on stderr.
//!
//! Lines are written by a thread of their own: whoever reads them and stands still (a full pipe, a
//! stuck disk) must not stop a node. Lines that find the queue to that thread full are dropped.

use std::io::{self, IsTerminal};

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::exit::{Failure, Reason};
use crate::flags::{Global, LogFormat};

/// Logs are written for as long as this lives; its end waits a moment for the last lines.
pub(crate) type Logs = WorkerGuard;

/// Logs of a client command: nothing unless something is asked for.
pub(crate) fn start_for_client(global: &Global) -> Result<Option<Logs>, Failure> {
    let as_json = global.log_format == Some(LogFormat::Json);
    global.log.as_ref().map(|filter| start(filter, as_json)).transpose()
}

/// Logs through `filter`: a level for what this program has to say, or levels by module.
pub(crate) fn start(filter: &str, as_json: bool) -> Result<Logs, Failure> {
    // A level alone doesn't ask for the inner life of a library, which is of use to nobody else.
    let is_level = filter.parse::<tracing::Level>().is_ok();
    let directives = if is_level { format!("{filter},openraft=error") } else { filter.to_owned() };
    let filter: EnvFilter = directives.parse().map_err(|error| {
        Failure::new(Reason::Config, format!("the log filter {filter:?}: {error}"))
            .advise("Use error, warn, info, debug or trace, or a list such as info,openraft=warn.")
    })?;
    let (writer, guard) = NonBlocking::new(io::stderr());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(writer);
    if as_json {
        logs.json().flatten_event(true).init()
    } else {
        logs.init()
    }
    Ok(guard)
}
