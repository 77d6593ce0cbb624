//! Which servers a command talks to.
//!
//! `--url`, then `--local`, then `LOCKKEEPER_URL`. If nobody has said it, a person at a terminal
//! gets this machine's own node; a job that runs unattended is refused. Otherwise the same job, on
//! two machines whose configuration was forgotten, would run twice, each under a lock of its own.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientBuilder};
use tokio::time::timeout;

use crate::embedded::{self, Starter};
use crate::exit::{Failure, Reason};
use crate::flags::Global;
use crate::text::Printable;

/// The URL of this machine's own node.
const EMBEDDED: &str = "embedded:";

/// A person who has waited so long for a server wants to know why.
const SILENCE: Duration = Duration::from_secs(2);

/// Where the servers are.
pub(crate) struct Target {
    url: String,
    /// Nobody has said it.
    is_implicit: bool,
}

impl Target {
    /// Decides it.
    ///
    /// # Errors
    ///
    /// [`Reason::NoUrl`] for an unattended job without a URL.
    pub(crate) fn of(global: &Global) -> Result<Self, Failure> {
        let variable = env::var("LOCKKEEPER_URL").ok().filter(|url| !url.is_empty());
        let said = |url: String| Ok(Self { url, is_implicit: false });
        match (&global.url, global.local, variable) {
            (Some(url), _, _) => said(url.clone()),
            (None, true, _) => said(EMBEDDED.to_owned()),
            (None, false, Some(url)) => said(url),
            (None, false, None) if io::stdin().is_terminal() || io::stderr().is_terminal() => {
                Ok(Self { url: EMBEDDED.to_owned(), is_implicit: true })
            }
            (None, false, None) => Err(Failure::new(
                Reason::NoUrl,
                "no servers are configured, and this is no terminal: an unattended job must say \
                 which locks it means",
            )
            .advise(
                "Set LOCKKEEPER_URL=lockkeeper://host:2379 (or --url), or use --local if other \
                 machines don't matter.",
            )),
        }
    }

    /// As the command that runs under a lock gets it.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Connects for questions.
    pub(crate) async fn connect(&self, global: &Global) -> Result<Client, Failure> {
        self.connect_as(global, |client| client).await
    }

    /// Connects as `configure` says.
    pub(crate) async fn connect_as(
        &self,
        global: &Global,
        configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, Failure> {
        if self.url == EMBEDDED {
            embedded::replace_other_version()?;
            // Now, so that a node that can't start is told at once; the client starts it again if
            // it should be gone later.
            embedded::start()
                .map_err(|error| Failure::new(Reason::Unavailable, format!("{error:#}")))?;
        }
        let client = Client::builder().url(&self.url).starter(Arc::new(Starter));
        let mut connecting = pin!(configure(client).connect());
        match timeout(SILENCE, &mut connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => {
                if !global.quiet {
                    let url = Printable(&self.url);
                    let _ = writeln!(io::stderr(), "lockkeeper: {url} doesn't answer yet …");
                }
                Ok(connecting.await?)
            }
        }
    }

    /// Tells a person who didn't ask for it that the lock is this machine's only.
    pub(crate) fn say_if_implicit(&self, global: &Global) {
        if self.is_implicit && !global.quiet {
            let _ = writeln!(
                io::stderr(),
                "lockkeeper: no servers are configured (LOCKKEEPER_URL): locks hold on this \
                 machine only"
            );
        }
    }
}
