//! ZooKeeper's `/commands`, over HTTP: what the words say, as JSON.
//!
//! Commands that would change more than counters, or move snapshots, are not here: they are told
//! what `lockkeeper` has for it.

use serde_json::{Map, Value, json};

use super::facts::{
    BUILT, ConnectionFacts, Facts, Mode, Sizes, Source, VERSION, millis, monitored,
};
use super::words::{NOT_SERVING, by_session, environment, port};

/// Each command with its other names.
const COMMANDS: &[(&str, &[&str])] = &[
    ("configuration", &["conf", "config"]),
    ("connection_stat_reset", &["crst"]),
    ("connections", &["cons"]),
    ("dirs", &[]),
    ("dump", &[]),
    ("environment", &["env", "envi"]),
    ("get_trace_mask", &["gtmk"]),
    ("hash", &[]),
    ("initial_configuration", &["icfg"]),
    ("is_read_only", &["isro"]),
    ("last_snapshot", &["lsnp"]),
    ("leader", &["lead"]),
    ("monitor", &["mntr"]),
    ("observer_connection_stat_reset", &["orst"]),
    ("observers", &["obsr"]),
    ("restore", &["rest"]),
    ("ruok", &[]),
    ("server_stats", &["srvr"]),
    ("set_trace_mask", &["stmk"]),
    ("snapshot", &["snap"]),
    ("stat_reset", &["srst"]),
    ("stats", &["stat"]),
    ("system_properties", &["sysp"]),
    ("voting_view", &[]),
    ("watch_summary", &["wchs"]),
    ("watches", &["wchc"]),
    ("watches_by_path", &["wchp"]),
    ("zabstate", &[]),
];

/// What is listed at `/commands`.
pub(crate) fn index() -> String {
    COMMANDS
        .iter()
        .map(|(name, _)| format!("<a href=\"/commands/{name}\">{name}</a>\n<br/>\n"))
        .collect()
}

/// What `/commands/{name}` answers.
pub(crate) fn answer(name: &str, source: &dyn Source) -> String {
    let known =
        COMMANDS.iter().find(|(primary, others)| *primary == name || others.contains(&name));
    let (primary, said) = match known {
        None => (name, Err(format!("Unknown command: {name}"))),
        Some((primary, _)) => {
            let facts = source.facts();
            let said = if facts.mode.is_none() && !needs_no_majority(primary) {
                Err(NOT_SERVING.to_owned())
            } else {
                content(primary, &facts, source)
            };
            (*primary, said)
        }
    };
    let (mut said, error) = match said {
        Ok(said) => (said, Value::Null),
        Err(error) => (Map::new(), error.into()),
    };
    said.insert("command".to_owned(), primary.into());
    said.insert("error".to_owned(), error);
    let mut text = serde_json::to_string_pretty(&said).unwrap_or_default();
    text.push('\n');
    text
}

fn needs_no_majority(command: &str) -> bool {
    matches!(
        command,
        "ruok"
            | "environment"
            | "get_trace_mask"
            | "set_trace_mask"
            | "is_read_only"
            | "system_properties"
            | "zabstate"
            | "voting_view"
            | "leader"
    )
}

fn content(
    command: &str,
    facts: &Facts,
    source: &dyn Source,
) -> Result<Map<String, Value>, String> {
    // A table.
    let said = match command {
        "configuration" => configuration(facts),
        "connections" => connections(source),
        "dirs" => {
            let bytes = source.disk_bytes();
            json!({ "datadir_size": bytes, "logdir_size": bytes })
        }
        "dump" => dump(source),
        "environment" => environment().into_iter().collect(),
        "get_trace_mask" | "set_trace_mask" => json!({ "tracemask": 306 }),
        "hash" => json!({ "digests": [] }),
        "initial_configuration" => json!({ "initial_configuration": facts.members }),
        "is_read_only" => json!({ "read_only": facts.mode == Some(Mode::ReadOnly) }),
        "last_snapshot" => {
            json!({ "zxid": format!("0x{:x}", facts.zxid), "timestamp": facts.now_ms / 1_000 })
        }
        "leader" => json!({
            "is_leader": matches!(facts.mode, Some(Mode::Leader | Mode::Standalone)),
            "leader_id": facts.leader_id,
            "leader_ip": member_host(facts, facts.leader_id),
        }),
        "monitor" => monitor(facts, source.files()),
        "observers" => json!({ "synced_observers": facts.observers, "observers": [] }),
        "server_stats" => stats(facts, source),
        "stats" => {
            let mut said = stats(facts, source);
            let (secure, plain) = by_tls(source);
            let list = |of: &[ConnectionFacts]| of.iter().map(brief).collect::<Vec<_>>();
            said["connections"] = list(&plain).into();
            said["secure_connections"] = list(&secure).into();
            said
        }
        "system_properties" | "ruok" => json!({}),
        "connection_stat_reset" | "observer_connection_stat_reset" => {
            source.reset_connections();
            json!({})
        }
        "stat_reset" => {
            source.reset_server();
            json!({})
        }
        "voting_view" => json!({ "current_config": voting_view(facts) }),
        "watch_summary" => watch_summary(&source.watches()),
        "watches" => watches(&source.watches()),
        "watches_by_path" => watches_by_path(&source.watches()),
        "zabstate" => zabstate(facts),
        "snapshot" | "restore" => {
            return Err("Not served here: see `lockkeeper cluster backup` and `restore`".to_owned());
        }
        _ => return Err(format!("Unknown command: {command}")),
    };
    match said {
        Value::Object(said) => Ok(said),
        _ => Ok(Map::new()),
    }
}

fn configuration(facts: &Facts) -> Value {
    let settings = &facts.settings;
    json!({
        "client_port": port(facts.client_port),
        "secure_client_port": port(facts.secure_client_port),
        "data_dir": facts.data_dir,
        "data_log_dir": facts.data_dir,
        "tick_time": millis(settings.tick),
        "max_client_cnxns": settings.client_connections_max,
        "min_session_timeout": millis(settings.session_timeout_min),
        "max_session_timeout": millis(settings.session_timeout_max),
        "server_id": facts.server_id,
        "client_port_listen_backlog": -1,
    })
}

fn connections(source: &dyn Source) -> Value {
    let (secure, plain) = by_tls(source);
    let list = |of: &[ConnectionFacts]| of.iter().map(connection).collect::<Vec<_>>();
    json!({ "connections": list(&plain), "secure_connections": list(&secure) })
}

/// Connections with TLS, and those without.
fn by_tls(source: &dyn Source) -> (Vec<ConnectionFacts>, Vec<ConnectionFacts>) {
    source.connections().into_iter().partition(|connection| connection.is_secure)
}

/// Without its session.
fn brief(connection: &ConnectionFacts) -> Value {
    json!({
        "remote_socket_address": connection.address.to_string(),
        "interest_ops": u8::from(connection.session.is_some()),
        "outstanding_requests": connection.outstanding,
        "packets_received": connection.received,
        "packets_sent": connection.sent,
    })
}

fn connection(connection: &ConnectionFacts) -> Value {
    let mut said = brief(connection);
    if let Some(session) = &connection.session {
        let more = json!({
            "session_id": session.id,
            "last_operation": super::facts::short_name(session.last_op),
            "established": session.since_ms,
            "session_timeout": session.timeout_ms,
            "last_cxid": session.last_xid,
            "last_zxid": session.last_zxid,
            "last_response_time": session.last_reply_ms,
            "last_latency": session.last_latency_ms,
            "min_latency": session.latency_ms.min,
            "avg_latency": session.latency_ms.avg,
            "max_latency": session.latency_ms.max,
        });
        if let (Value::Object(said), Value::Object(more)) = (&mut said, more) {
            said.extend(more);
        }
    }
    said
}

fn dump(source: &dyn Source) -> Value {
    let sessions = source.sessions();
    let mut expiries: Map<String, Value> = Map::new();
    for (session, at_ms) in sessions.expiries {
        let at = expiries.entry(at_ms.to_string()).or_insert_with(|| json!([]));
        if let Value::Array(at) = at {
            at.push(session.into());
        }
    }
    let ephemerals: Map<String, Value> = sessions
        .ephemerals
        .into_iter()
        .map(|(session, paths)| (session.to_string(), paths.into()))
        .collect();
    json!({
        "expiry_time_to_session_ids": expiries,
        "session_id_to_ephemeral_paths": ephemerals,
    })
}

fn monitor(facts: &Facts, files: (u64, u64)) -> Value {
    let mut said: Map<String, Value> = monitored(facts, files)
        .into_iter()
        .map(|(name, it)| (name.to_owned(), it.into()))
        .collect();
    said.insert("version".to_owned(), version().into());
    said.insert("server_state".to_owned(), facts.mode.map(Mode::name).into());
    Value::Object(said)
}

fn stats(facts: &Facts, source: &dyn Source) -> Value {
    let disk_bytes = source.disk_bytes();
    let (local, remote): (Vec<_>, Vec<_>) = by_tls(source)
        .1
        .into_iter()
        .partition(|connection| connection.address.ip().to_canonical().is_loopback());
    let Sizes { last, min, max } = facts.reply_bytes;
    let replies =
        json!({ "last_buffer_size": last, "min_buffer_size": min, "max_buffer_size": max });
    json!({
        "version": version(),
        "read_only": facts.mode == Some(Mode::ReadOnly),
        "server_stats": {
            "packets_sent": facts.sent,
            "packets_received": facts.received,
            "max_latency": facts.latency_ms.max,
            "min_latency": facts.latency_ms.min,
            "avg_latency": facts.latency_avg_ms,
            "client_response_stats": replies,
            // Those that there are, and not all there have been.
            "non_mtlslocal_conn_count": local.len(),
            "non_mtlsremote_conn_count": remote.len(),
            "fsync_threshold_exceed_count": 0,
            "data_dir_size": disk_bytes,
            "log_dir_size": disk_bytes,
            "last_processed_zxid": facts.zxid,
            "outstanding_requests": facts.outstanding,
            "server_state": facts.mode.map(Mode::name),
            "num_alive_client_connections": facts.connections,
            "auth_failed_count": facts.authentications_failed,
            "provider_null": facts.mode.is_none(),
            "uptime": millis(facts.uptime),
        },
        "client_response": replies,
        "node_count": facts.nodes,
    })
}

fn watch_summary(watches: &[(String, Vec<u64>)]) -> Value {
    let total: usize = watches.iter().map(|(_, sessions)| sessions.len()).sum();
    json!({
        "num_connections": by_session(watches).len(),
        "num_paths": watches.len(),
        "num_total_watches": total,
    })
}

fn watches(watches: &[(String, Vec<u64>)]) -> Value {
    let by_session: Map<String, Value> = by_session(watches)
        .into_iter()
        .map(|(session, paths)| (session.to_string(), paths.into()))
        .collect();
    json!({ "session_id_to_watched_paths": by_session })
}

fn watches_by_path(watches: &[(String, Vec<u64>)]) -> Value {
    let by_path: Map<String, Value> =
        watches.iter().map(|(path, sessions)| (path.clone(), sessions.clone().into())).collect();
    json!({ "path_to_session_ids": by_path })
}

fn zabstate(facts: &Facts) -> Value {
    json!({
        "myid": facts.server_id,
        "is_leader": matches!(facts.mode, Some(Mode::Leader | Mode::Standalone)),
        "voting": facts.mode != Some(Mode::Observer),
        "last_zxid": format!("0x{:x}", facts.zxid),
        "zab_epoch": facts.term,
        "zab_counter": facts.zxid,
        "zabstate": if facts.mode.is_some() { "broadcast" } else { "election" },
    })
}

/// The members' lines: number and addresses.
fn members(facts: &Facts) -> impl Iterator<Item = (&str, &str)> {
    let lines = facts.members.lines().filter_map(|line| line.strip_prefix("server."));
    lines.filter_map(|line| line.split_once('='))
}

fn member_host(facts: &Facts, id: Option<u64>) -> String {
    let id = id.map(|id| id.to_string());
    let found = members(facts).find(|(member, _)| Some(*member) == id.as_deref());
    // Ports stand behind the last colons; an address of IPv6 stands in brackets.
    let host = found.map_or("", |(_, address)| match address.strip_prefix('[') {
        Some(inside) => inside.split(']').next().unwrap_or(""),
        None => address.split(':').next().unwrap_or(""),
    });
    host.to_owned()
}

fn voting_view(facts: &Facts) -> Map<String, Value> {
    let voters = members(facts).filter(|(_, address)| !address.contains(":observer"));
    voters.map(|(id, address)| (id.to_owned(), address.into())).collect()
}

fn version() -> String {
    format!("{VERSION}, built on {BUILT}")
}

#[cfg(test)]
mod tests {
    use super::super::facts::testing::{Fixed, facts};
    use super::*;

    fn ask(name: &str, source: &Fixed) -> Value {
        serde_json::from_str(&answer(name, source)).unwrap()
    }

    #[test]
    fn every_command_answers_with_its_first_name() {
        let source = Fixed(facts());
        for (primary, others) in COMMANDS {
            for name in [primary].into_iter().chain(*others) {
                let said = ask(name, &source);
                assert_eq!(said["command"], *primary);
                let is_refused = matches!(*primary, "snapshot" | "restore");
                assert_eq!(said["error"].is_null(), !is_refused, "{name}: {said}");
            }
            assert!(index().contains(&format!("/commands/{primary}\"")));
        }
        let said = ask("rouk", &source);
        assert_eq!(said, json!({ "command": "rouk", "error": "Unknown command: rouk" }));
    }

    #[test]
    fn without_a_majority() {
        let mut source = Fixed(facts());
        source.0.mode = None;
        assert_eq!(ask("stats", &source)["error"], NOT_SERVING);
        assert_eq!(ask("ruok", &source)["error"], Value::Null);
    }

    #[test]
    fn what_probes_look_at() {
        let mut source = Fixed(facts());
        source.0.mode = Some(Mode::Follower);
        (source.0.voters, source.0.leader_id) = (3, Some(2));
        source.0.members = "server.1=a:1:2:participant\nserver.2=[::1]:1:2:participant\n\
                            server.3=c:1:2:observer\nversion=0"
            .to_owned();
        let said = ask("lead", &source);
        assert_eq!(said["leader_ip"], "::1");
        assert_eq!((&said["is_leader"], &said["leader_id"]), (&false.into(), &2.into()));
        let view = ask("voting_view", &source);
        assert_eq!(view["current_config"].as_object().unwrap().len(), 2);
        let said = ask("stats", &source);
        assert_eq!(said["server_stats"]["server_state"], "follower");
        assert_eq!(said["connections"].as_array().unwrap().len(), 2);
        assert_eq!(said["connections"][1]["packets_received"], 14);
        assert_eq!(said["connections"][1]["last_operation"], Value::Null);
        assert_eq!(said["server_stats"]["avg_latency"], 2.25);
        assert_eq!(said["server_stats"]["non_mtlslocal_conn_count"], 2);
        assert_eq!(said["client_response"]["max_buffer_size"], 900);
        assert_eq!(ask("cons", &source)["connections"][1]["last_operation"], "PING");
        assert_eq!(ask("monitor", &source)["znode_count"], 5);
        assert_eq!(ask("zabstate", &source)["last_zxid"], "0x1f");
        assert_eq!(ask("wchs", &source)["num_total_watches"], 3);
        assert_eq!(ask("wchp", &source)["path_to_session_ids"]["/b"], json!([0xab]));
        assert_eq!(ask("wchc", &source)["session_id_to_watched_paths"]["172"], json!(["/a"]));
        let dump = ask("dump", &source);
        assert_eq!(dump["session_id_to_ephemeral_paths"]["171"], json!(["/a/b", "/a/c"]));
    }
}
