//! `server` and `dev`: a node in this process, until a signal or a fault.

use std::io;

use lockkeeper_node::{Environment, Member};
use lockkeeper_server::{
    ConfigError, LogFormat, Server, ServerConfig, Settings, StartError, ZooKeeperKeys,
};

use crate::exit::{Failure, Reason};
use crate::flags::{self, Global};
use crate::signals::Signals;
use crate::{logs, output};

/// Runs a server.
pub(crate) async fn run(global: &Global, flags: flags::Server) -> Result<u8, Failure> {
    let check = flags.check;
    let file = flags.config.clone();
    let config = ServerConfig::load(file.as_deref(), std::env::vars(), settings(global, flags))?;
    if check {
        output::line("the configuration is right")?;
        return Ok(0);
    }
    let _logs = logs::start(&config.log_level, config.log_format == LogFormat::Json)?;
    serve(config, async |_| Ok(())).await?;
    Ok(0)
}

/// Runs one server in a directory that goes with it.
pub(crate) async fn run_dev(global: &Global, flags: flags::Dev) -> Result<u8, Failure> {
    let directory = std::env::temp_dir().join(format!("lockkeeper-dev-{}", std::process::id()));
    let flags = flags::Server {
        data_dir: Some(directory.clone()),
        listen: Some(flags.listen),
        zookeeper: flags.zookeeper,
        // Nobody looks for it, so any port will do: two of them don't get into each other's way.
        listen_peer: Some("127.0.0.1:0".to_owned()),
        ..flags::Server::default()
    };
    // Neither a file nor variables of another server are meant.
    let config = ServerConfig::load(None, std::iter::empty(), settings(global, flags))?;
    let _logs = logs::start(&config.log_level, config.log_format == LogFormat::Json)?;
    let served = serve(config, async |server| {
        let url = server.addresses().join(",");
        eprint(&format!(
            "lockkeeper: a server for trying things out, gone with all its locks when it ends.\n\
             \x20 In another terminal:\n\
             \x20   export LOCKKEEPER_URL=lockkeeper://{url}\n\
             \x20   lockkeeper lock hello -- sleep 10"
        ))?;
        match server.zookeeper_address() {
            Some(address) => eprint(&format!("\x20 For ZooKeeper clients: {address}")),
            None => Ok(()),
        }
    })
    .await;
    match std::fs::remove_dir_all(&directory) {
        // It never came to that.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    served.map(|()| 0)
}

/// Serves until a signal, idleness or a fault. `on_start` is called once clients can connect.
pub(crate) async fn serve(
    config: ServerConfig,
    on_start: impl AsyncFnOnce(&Server) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut signals = Signals::of_a_server()?;
    let server = Server::start(config, Environment::system()).await?;
    on_start(&server).await?;
    tokio::select! {
        signal = signals.next() => tracing::info!(signal = signal.as_raw(), "stopping"),
        () = server.idle() => tracing::info!("nobody needs this node: stopping"),
        fault = server.fault() => {
            tracing::error!(%fault, "this node is unfit");
            return Err(Failure::new(Reason::Fault, fault.to_string()));
        }
    }
    server.stop().await;
    Ok(())
}

fn settings(global: &Global, flags: flags::Server) -> Settings {
    let member = |(id, peer_address)| Member { id, peer_address };
    let cluster: Vec<_> = flags.cluster.into_iter().map(member).collect();
    Settings {
        id: flags.id,
        data_dir: flags.data_dir,
        listen: flags.listen,
        listen_peer: flags.listen_peer,
        cluster: Some(cluster).filter(|cluster| !cluster.is_empty()),
        join: flags.join.then_some(true),
        insecure: flags.insecure.then_some(true),
        zookeeper: ZooKeeperKeys { listen: flags.zookeeper, ..ZooKeeperKeys::default() },
        log_level: global.log.clone(),
        log_format: global.log_format.map(Into::into),
        ..Settings::default()
    }
}

impl From<flags::LogFormat> for LogFormat {
    fn from(format: flags::LogFormat) -> Self {
        match format {
            flags::LogFormat::Text => Self::Text,
            flags::LogFormat::Json => Self::Json,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Reason::Config, error.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let reason = match &error {
            StartError::Config(_) => Reason::Config,
            StartError::Listen { .. } => Reason::Listen,
            StartError::Node(error) => reason_of(error),
            StartError::Tls(_) => Reason::Config,
            StartError::Boot(_) | StartError::Http(_) | StartError::TlsThread(_) => Reason::Io,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<lockkeeper_node::StartError> for Failure {
    fn from(error: lockkeeper_node::StartError) -> Self {
        Self::new(reason_of(&error), error.to_string())
    }
}

const fn reason_of(error: &lockkeeper_node::StartError) -> Reason {
    use lockkeeper_node::StartError as E;
    match error {
        E::InUse(_) => Reason::InUse,
        E::ForeignDirectory { .. } | E::Config(_) => Reason::Config,
        E::Listen { .. } => Reason::Listen,
        E::Io(_) => Reason::Io,
        E::Fault(_) => Reason::Fault,
    }
}

fn eprint(text: &str) -> io::Result<()> {
    use io::Write;
    writeln!(io::stderr(), "{text}")
}
