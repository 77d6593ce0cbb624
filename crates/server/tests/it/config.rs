//! What an operator may write, and what is said about mistakes.

use std::path::Path;
use std::time::Duration;

use lockkeeper_node::{Member, Start, Timers};
use lockkeeper_server::{LogFormat, Network, ServerConfig, Settings};

#[test]
fn the_example_file_holds_every_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lockkeeper.example.toml");
    let example = ServerConfig::load(Some(&path), no_variables(), Settings::default()).unwrap();
    let flags = Settings { data_dir: Some("/var/lib/lockkeeper".into()), ..Settings::default() };
    let default = ServerConfig::load(None, no_variables(), flags).unwrap();
    assert_eq!(format!("{example:?}"), format!("{default:?}"));
}

#[test]
fn the_commented_lines_of_the_example_are_settings_too() {
    let text = include_str!("../../../../docs/lockkeeper.example.toml");
    let uncommented: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| is_setting(line))
        .fold(String::new(), |text, line| text + line + "\n");
    let settings = Settings::from_toml(&uncommented, "example").unwrap();
    assert_eq!(settings.listen_unix, Some("/run/lockkeeper/lockkeeper.sock".into()));
    assert_eq!(settings.cluster.map(|members| members.len()), Some(3));
    assert!(settings.heartbeat_interval.is_some() && settings.election_timeout.is_some());
    let zookeeper = settings.zookeeper;
    assert_eq!(zookeeper.listen.as_deref(), Some("127.0.0.1:2181"));
    assert_eq!(zookeeper.require_auth, Some(vec!["sasl".to_owned()]));
    assert!(zookeeper.tls_key.is_some() && zookeeper.metrics_prefixes.is_some());
}

fn is_setting(line: &str) -> bool {
    line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "listen = \"127.0.0.1:1\"\nnetwork = \"wan\"\nlog_format = \"json\"\n";
    std::fs::write(file.path(), text).unwrap();
    let variables = [variable("LOCKKEEPER_LISTEN", "127.0.0.1:2"), variable("PATH", "/bin")];
    let flags = Settings { listen: Some("127.0.0.1:3".to_owned()), ..Settings::default() };

    let config = ServerConfig::load(Some(file.path()), variables.clone(), flags).unwrap();
    assert_eq!(config.listen.as_deref(), Some("127.0.0.1:3"));
    assert_eq!(config.node.timers, Timers::WAN);
    assert_eq!(config.log_format, LogFormat::Json);

    let config = ServerConfig::load(Some(file.path()), variables, Settings::default()).unwrap();
    assert_eq!(config.listen.as_deref(), Some("127.0.0.1:2"));
}

#[test]
fn the_clients_variables_are_left_alone() {
    let variables = [variable("LOCKKEEPER_URL", "lockkeeper://a"), variable("LOCKKEEPER_TTL", "x")];
    ServerConfig::load(None, variables, Settings::default()).unwrap();
}

#[test]
fn a_cluster_is_a_list_of_members() {
    let variables = [
        variable("LOCKKEEPER_ID", "2"),
        variable("LOCKKEEPER_CLUSTER", "1=127.0.0.1:11,2=127.0.0.1:12"),
    ];
    let config = ServerConfig::load(None, variables, Settings::default()).unwrap();
    let member = |id, address: &str| Member { id, peer_address: address.to_owned() };
    let members = vec![member(1, "127.0.0.1:11"), member(2, "127.0.0.1:12")];
    assert_eq!(config.node.start, Start::Together(members));
}

#[test]
fn timers_are_those_of_the_network_unless_they_are_given() {
    let load = |variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| variable(name, value));
        ServerConfig::load(None, variables, Settings::default()).unwrap().node.timers
    };
    let ms = Duration::from_millis;
    assert_eq!(load(&[]), Timers::LAN);
    let elections = ("LOCKKEEPER_ELECTION_TIMEOUT", "300ms, 600ms");
    let relaxed = Timers { election_min: ms(300), election_max: ms(600), ..Timers::LAN };
    assert_eq!(load(&[elections]), relaxed);
    let both = [elections, ("LOCKKEEPER_HEARTBEAT_INTERVAL", "60ms")];
    assert_eq!(load(&both), Timers { heartbeat: ms(60), ..relaxed });
    let text = "network = \"wan\"\nheartbeat_interval = \"250ms\"";
    let settings = Settings::from_toml(text, "lockkeeper.toml").unwrap();
    let config = ServerConfig::load(None, no_variables(), settings).unwrap();
    assert_eq!(config.node.timers, Timers { heartbeat: ms(250), ..Timers::WAN });
}

/// Each mistake, and what the message must say: where, what, and what to write instead.
#[test]
fn mistakes_are_told_with_their_place_and_a_remedy() {
    let table: [(&str, &[&str]); 33] = [
        ("id = 1\nlisten_pear = \"x\"", &["lockkeeper.toml:2", "`listen_pear`", "`listen_peer`?"]),
        ("colour = 1", &["lockkeeper.toml:1", "`colour`", "the settings are id, data_dir"]),
        ("id = ", &["lockkeeper.toml:1"]),
        ("id = 1\nid = 2", &["lockkeeper.toml:2", "duplicate key"]),
        ("id = \"one\"", &["lockkeeper.toml:1", "id = \"one\"", "a whole number"]),
        ("id = -1", &["id = \"-1\"", "a whole number"]),
        ("id = 0", &["1 or more"]),
        ("ttl_max = 10", &["ttl_max = \"10\"", "needs a unit", "\"10s\" or \"10ms\""]),
        ("ttl_max = \"7days\"", &["ttl_max = \"7days\"", "between 200 ms and 24 hours"]),
        ("idle_timeout = \"0s\"", &["idle_timeout must be more than 0"]),
        ("insecure = \"perhaps\"", &["insecure = \"perhaps\"", "true or false"]),
        ("network = \"moon\"", &["network = \"moon\"", "\"lan\"", "\"wan\""]),
        ("election_timeout = \"300ms\"", &["the shortest and the longest", "\"600ms\""]),
        ("election_timeout = [\"600ms\", \"300ms\"]", &["[\"600ms\", \"300ms\"]", "longer still"]),
        ("heartbeat_interval = \"60ms\"", &["\"60ms\"", "[\"100ms\", \"200ms\"]", "twice"]),
        ("heartbeat_interval = \"1ms\"", &["10ms or more"]),
        ("snapshot_log_bytes = \"64MB\"", &["64MB", "\"64MiB\""]),
        ("listen = \"2379\"", &["listen = \"2379\"", "host:port"]),
        ("listen = \"0.0.0.0:2379\"", &["listen = \"0.0.0.0:2379\"", "`insecure = true`"]),
        ("listen = \"db.example:2379\"", &["listen = \"db.example:2379\"", "`insecure = true`"]),
        ("cluster = [\"10.0.0.1:2380\"]\nid = 1", &["cluster", "\"1=10.0.0.1:2380\""]),
        ("cluster = [\"1=127.0.0.1:1\"]", &["`id = 1`"]),
        ("id = 3\ncluster = [\"1=127.0.0.1:1\"]", &["id 3", "lists only [1]"]),
        (
            "id = 1\njoin = true\ncluster = [\"1=127.0.0.1:1\"]",
            &["`join` and `cluster` contradict each other"],
        ),
        ("zookeeper_listen = \"0.0.0.0:2181\"", &["zookeeper_listen", "`insecure = true`"]),
        (
            "zookeeper_tls_listen = \"0.0.0.0:2281\"",
            &["`zookeeper_tls_certificate = \"server.pem\"`"],
        ),
        (
            "zookeeper_tls_listen = \"127.0.0.1:1\"\nzookeeper_tls_certificate = \"a.pem\"\n\
             zookeeper_tls_client_auth = \"need\"",
            &["`zookeeper_tls_authorities = \"ca.pem\"`"],
        ),
        ("zookeeper_words_whitelist = [\"rouk\"]", &["\"rouk\"", "ruok, srst"]),
        ("zookeeper_min_session_timeout = \"2m\"", &["from 2m to 1m", "ticks of 3s"]),
        ("zookeeper_max_buffer = \"2MiB\"", &["zookeeper_max_buffer = 2097152", "between 1024"]),
        ("zookeeper_super_digest = \"root:x\"", &["\"super:\" and the digest"]),
        ("zookeeper_require_auth = [\"sasl\"]", &["`zookeeper_jaas = \"jaas.conf\"`"]),
        ("zookeeper_jaas = \"/no/such/file\"", &["/no/such/file"]),
    ];
    for (text, expected) in table {
        let message = mistake(text);
        for part in expected {
            assert!(message.contains(part), "{text:?}\n  says: {message}\n  lacks: {part}");
        }
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let error = Settings::from_environment([variable("LOCKKEEPER_JOIN", "maybe")]).unwrap_err();
    assert!(error.to_string().starts_with("LOCKKEEPER_JOIN: join = \"maybe\""), "{error}");
}

#[test]
fn a_listener_for_others_needs_the_word() {
    let insecure = Settings {
        listen: Some("0.0.0.0:2379".to_owned()),
        insecure: Some(true),
        ..Settings::default()
    };
    ServerConfig::load(None, no_variables(), insecure).unwrap();
    for loopback in ["localhost:1", "[::1]:1", "127.8.8.8:1"] {
        let settings = Settings { listen: Some(loopback.to_owned()), ..Settings::default() };
        ServerConfig::load(None, no_variables(), settings).unwrap();
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let path = Path::new("/no/such/lockkeeper.toml");
    let error = ServerConfig::load(Some(path), no_variables(), Settings::default()).unwrap_err();
    assert!(error.to_string().contains("/no/such/lockkeeper.toml"), "{error}");
}

#[test]
fn settings_are_layered_key_by_key() {
    let above = Settings { network: Some(Network::Wan), ..Settings::default() };
    let below = Settings {
        network: Some(Network::Lan),
        ttl_max: Some(Duration::from_secs(60)),
        ..Settings::default()
    };
    let both = above.or(below);
    assert_eq!(both.network, Some(Network::Wan));
    assert_eq!(both.ttl_max, Some(Duration::from_secs(60)));
}

fn mistake(text: &str) -> String {
    let settings = match Settings::from_toml(text, "lockkeeper.toml") {
        Ok(settings) => settings,
        Err(error) => return error.to_string(),
    };
    match ServerConfig::load(None, no_variables(), settings) {
        Ok(config) => panic!("{text:?} was taken: {config:?}"),
        Err(error) => error.to_string(),
    }
}

fn no_variables() -> [(String, String); 0] {
    []
}

fn variable(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
