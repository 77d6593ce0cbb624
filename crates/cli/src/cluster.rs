//! `cluster …` and `status`: the servers, as one of them sees them, and changes to them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use lockkeeper::views::Cluster;
use lockkeeper_node::{Environment, NodeConfig, restore};

use crate::connect::Target;
use crate::exit::{Failure, Reason};
use crate::flags::{ClusterCommand, Global, Output, Restore};
use crate::json;
use crate::output::{self, Rows};
use crate::text::{Printable, count, seconds};

pub(crate) async fn run(global: &Global, command: ClusterCommand) -> Result<u8, Failure> {
    if let ClusterCommand::Restore(flags) = command {
        return restore_from(&flags);
    }
    let client = Target::of(global)?.connect(global).await?;
    let admin = client.admin();
    match command {
        ClusterCommand::Status => match (admin.cluster_status().await?, global.output) {
            (cluster, Output::Json) => output::document(&json::Cluster::from(&cluster))?,
            (cluster, Output::Table) => {
                summary(&cluster)?;
                members(&cluster)?;
            }
        },
        ClusterCommand::Add { member: (id, address), learner: true } => {
            admin.add_learner(id, &address).await?;
            output::line(format!("server {id} at {address} follows, without a vote"))?;
        }
        ClusterCommand::Add { member: (id, address), learner: false } => {
            admin.add_member(id, &address).await?;
            output::line(format!("server {id} at {address} is a member, and votes"))?;
        }
        ClusterCommand::Remove { id } => {
            admin.remove_member(id).await?;
            output::line(format!("server {id} is no member any more; it can be stopped"))?;
        }
        ClusterCommand::Transfer { id } => {
            admin.transfer_leadership(id).await?;
            match admin.cluster_status().await?.leader {
                Some(leader) => output::line(format!("server {leader} leads"))?,
                None => output::line("handed over; the new leader isn't known here yet")?,
            }
        }
        ClusterCommand::Snapshot { file } => {
            let backup = admin.backup().await?;
            save(&file, &backup)?;
            let (file, size) = (file.display(), backup.len());
            output::line(format!("{size} bytes in {file}"))?;
        }
        ClusterCommand::Restore(_) => {}
    }
    Ok(0)
}

/// `status`: how the servers are, in a few lines.
pub(crate) async fn status(global: &Global) -> Result<u8, Failure> {
    let target = Target::of(global)?;
    let cluster = target.connect(global).await?.admin().cluster_status().await?;
    match global.output {
        Output::Json => output::document(&json::Cluster::from(&cluster))?,
        Output::Table => {
            output::line(Printable(&target.url()))?;
            summary(&cluster)?;
        }
    }
    Ok(0)
}

fn summary(cluster: &Cluster) -> Result<(), Failure> {
    let voters = cluster.members.iter().filter(|member| member.is_voter).count();
    let leader = cluster.leader.map_or_else(
        || "no leader is known".to_owned(),
        |leader| format!("server {leader} leads (term {})", cluster.term),
    );
    let servers = count(voters as u64, "voting server");
    output::line(format!("cluster {}: {servers}; {leader}", cluster.cluster_id))?;
    output::line(format!(
        "{} held, {} waiting, on {}; {}",
        count(cluster.hold_count, "lock"),
        cluster.waiter_count,
        count(cluster.lock_count, "name"),
        count(cluster.session_count, "session"),
    ))?;
    if cluster.is_silent {
        output::line(
            "restored from a backup: nothing is granted yet, until the longest lease of the old \
             cluster is over",
        )?;
    }
    output::line(format!(
        "server {} answered: version {}, revision {}",
        cluster.node,
        Printable(&cluster.version),
        cluster.revision
    ))
}

fn members(cluster: &Cluster) -> Result<(), Failure> {
    let mut rows = Rows::new(&[">SERVER", "ROLE", "PEER ADDRESS", ">HEARD", ">ON DISK"]);
    for member in &cluster.members {
        let role = match (member.is_leader, member.is_voter) {
            (true, _) => "leader",
            (false, true) => "follower",
            (false, false) => "learner",
        };
        let heard = match member.heard_ago {
            _ if member.node == cluster.node => "answers".to_owned(),
            Some(ago) => format!("{} ago", seconds(ago)),
            None => "never".to_owned(),
        };
        let on_disk = member.matched_index.map_or_else(String::new, |index| index.to_string());
        let address = Printable(&member.peer_address).to_string();
        rows.add(vec![member.node.to_string(), role.to_owned(), address, heard, on_disk]);
    }
    rows.print("  ")
}

/// Writes a file that wasn't there, and that survives a power cut.
fn save(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let saved = File::create_new(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    saved.map_err(|error| {
        let what = format!("can't write the backup to {}: {error}", path.display());
        Failure::new(Reason::Io, what)
    })
}

fn restore_from(flags: &Restore) -> Result<u8, Failure> {
    let path = flags.file.display();
    let backup = std::fs::read(&flags.file)
        .map_err(|error| Failure::new(Reason::Io, format!("{path}: {error}")))?;
    let config = NodeConfig::new(flags.id, flags.data_dir.clone());
    let environment = Environment::system();
    let cluster = restore(&backup, &config, &environment, flags.clients_are_stopped)?;
    let directory = flags.data_dir.display();
    output::line(format!("{directory} is the first server of the new cluster {cluster}"))?;
    output::line(format!(
        "Start it with `lockkeeper server --id {} --data-dir {directory}`; add the others with \
         --join and `lockkeeper cluster add`.",
        flags.id
    ))?;
    if !flags.clients_are_stopped {
        output::line(
            "It grants nothing before the longest lease is over (ttl_max), because clients of the \
             old cluster may still run; see --clients-are-stopped.",
        )?;
    }
    Ok(0)
}
