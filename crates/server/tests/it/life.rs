//! Starting, stopping, and starting again.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockkeeper_node::{Environment, Timers};
use lockkeeper_server::{Server, ServerConfig};
use lockkeeper_wire::native::{self as wire, refused::Code, request::Body as Asks, response::Body};

use crate::harness::{
    Client, LONG_TTL_MS, Members, Running, SECRET, acquire, fresh_id, http, open, resume, runtime,
    start_error,
};

#[test]
fn a_port_in_use_is_told() {
    let server = Running::start();
    let directory = tempfile::tempdir().unwrap();
    let mut config = ServerConfig::loopback(1, directory.path().to_owned());
    config.listen = Some(server.address.to_string());
    let message = start_error(config).to_string();
    assert!(message.contains(&server.address.to_string()), "{message}");
    assert!(message.contains("another process has it"), "{message}");
    server.assert_serves();
}

#[test]
fn a_data_directory_in_use_is_told() {
    let server = Running::start();
    let message = start_error(ServerConfig::loopback(1, server.data_dir().to_owned())).to_string();
    assert!(message.contains(&server.data_dir().display().to_string()), "{message}");
    assert!(message.contains("in use"), "{message}");
    server.assert_serves();
}

#[test]
fn a_configuration_that_contradicts_itself_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = ServerConfig::loopback(1, directory.path().to_owned());
    config.listen = Some("0.0.0.0:0".to_owned());
    let message = start_error(config).to_string();
    assert!(message.contains("`insecure = true`"), "{message}");
}

#[test]
fn a_stop_says_goodbye_and_a_session_outlives_it() {
    let server = Running::start();
    let session = fresh_id();
    let mut client = server.connect();
    client.open(session);
    let token = client.acquire(2, "a");

    let data_dir = server.stop();
    client.goodbye();
    let server = Running::start_in(data_dir, |_| {});
    let mut client = server.connect();
    client.ask(3, resume(session, &SECRET));
    let state = client.session_state(3);
    assert_eq!((state.holds[0].lock.as_str(), state.holds[0].token), ("a", token));
    server.assert_serves();
}

#[test]
fn a_leader_that_stops_costs_its_clients_nothing() {
    let members = Members::three();
    let mut servers: Vec<Running> = (1..=3).map(|id| members.start(id, |_| {})).collect();
    let session = fresh_id();
    let (leader, mut client, token) = with_a_lock_at_the_leader(&servers, session);

    servers.remove(leader).stop();
    client.goodbye();
    // Any other goes on with the session, and with what it holds.
    let mut client = servers[0].connect();
    client.ask(100, resume(session, &SECRET));
    let state = client.session_state(100);
    assert_eq!((state.holds[0].lock.as_str(), state.holds[0].token), ("a", token));
    client.ask(101, Asks::Heartbeat(wire::Heartbeat {}));
    assert_eq!(client.answer(101), Body::HeartbeatConfirmed(wire::HeartbeatConfirmed {}));
}

/// A client of whoever leads, with a session that holds the lock `a`.
pub(crate) fn with_a_lock_at_the_leader(servers: &[Running], session: u64) -> (usize, Client, u64) {
    loop {
        for (index, server) in servers.iter().enumerate() {
            let mut client = server.connect();
            client.ask(1, Asks::ClusterStatus(wire::ClusterStatus {}));
            let Body::Cluster(cluster) = client.answer(1) else { panic!("no status") };
            if cluster.leader == cluster.node && cluster.hold_count == 0 {
                client.ask(2, open(session, LONG_TTL_MS));
                if let Body::SessionState(_) = client.answer(2) {
                    let Body::Granted(granted) = client.insist(3, &acquire("a")) else {
                        panic!("nobody else wants it");
                    };
                    return (index, client, granted.token);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn http_connections_do_not_keep_a_server_from_stopping() {
    let server = Running::start();
    let idle = server.connect_silently();
    std::io::Write::write_all(&mut &idle, b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(http(&server, "HEAD /livez HTTP/1.0\r\n\r\n").starts_with("HTTP/1."));
    server.stop();
}

#[test]
fn an_embedded_node_serves_its_socket_and_is_idle_once_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("lockkeeper.sock");
    // What a crash has left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let data_dir = directory.path().join("data");
    let mut config = ServerConfig::embedded(data_dir, socket.clone(), Duration::from_millis(50));
    config.node.free_space_bytes_min = 0;
    // As the harness has it: a slow disk is waited for.
    config.node.timers = Timers::WAN;

    runtime().block_on(async {
        let server = Server::start(config, Environment::system()).await.unwrap();
        assert_eq!(server.addresses(), [format!("unix:{}", socket.display())]);
        let user = std::thread::spawn({
            let socket = socket.clone();
            move || {
                let mut client = Client::new(UnixStream::connect(&socket).unwrap());
                client.open(fresh_id());
                client.acquire(2, "a");
                let end = wire::EndSession::default();
                client.ask(3, Asks::EndSession(end));
                while client.receive().unwrap().id != 3 {}
            }
        });
        tokio::task::spawn_blocking(move || user.join().unwrap()).await.unwrap();
        server.idle().await;
        server.stop().await;
    });
    assert!(!socket.exists());
}

#[test]
fn sessions_of_an_earlier_boot_end_at_the_start() {
    let start = |data_dir| {
        Running::start_in(data_dir, |config| config.ends_sessions_of_earlier_boots = true)
    };
    let server = start(tempfile::tempdir().unwrap());
    let session = fresh_id();
    let mut client = server.connect();
    client.open(session);
    client.acquire(2, "a");

    // The same boot: it lives on.
    let server = start(server.stop());
    let mut client = server.connect();
    client.ask(3, resume(session, &SECRET));
    assert_eq!(client.session_state(3).holds.len(), 1);

    let data_dir = server.stop();
    std::fs::write(data_dir.path().join("boot-id"), "another boot").unwrap();
    let server = start(data_dir);
    let mut client = server.connect();
    client.ask(4, resume(session, &SECRET));
    assert_eq!(client.refusal(4).code(), Code::UnknownSession);
    client.open(fresh_id());
    client.acquire(5, "a");
}
