//! `server` and `dev` as processes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::home::{Ended, Home, wait_for};

#[test]
fn a_configuration_is_checked_without_starting_anything() {
    let home = Home::new();
    let check = |text: &str| {
        fs::write(home.path("lockkeeper.toml"), text).unwrap();
        let line = ["server", "--config", "lockkeeper.toml", "--check"];
        Ended::run(&mut home.command(&line))
    };
    let right = check("listen = \"127.0.0.1:4001\"\n");
    right.assert(0, &[]);
    assert_eq!(right.stdout, "the configuration is right\n");
    check("lisen = \"127.0.0.1:4001\"\n").assert(78, &["lockkeeper.toml:1", "`listen`"]);
    check("listen = \"0.0.0.0:4001\"\n").assert(78, &["insecure", "[LK-CONFIG]"]);
    check("ttl_max = \"30\"\n").assert(78, &["unit", "[LK-CONFIG]"]);
    assert!(fs::read_dir(home.path(".")).unwrap().count() == 1, "nothing was made");
}

#[test]
fn a_server_for_trying_things_out_goes_with_all_it_made() {
    let home = Home::new();
    let directory = home.path("tmp");
    fs::create_dir(&directory).unwrap();
    let dev = |address: &str| {
        let mut command = home.command(&["dev", "--listen", address]);
        command.env("TMPDIR", &directory);
        command
    };
    let mut server = home.spawn_command(&mut dev("127.0.0.1:0"));
    let url = wait_for("its URL", || {
        let said = server.said();
        let mut lines = said.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix("export LOCKKEEPER_URL=")).map(str::to_owned)
    });
    Ended::run(&mut home.command(&["lock", "x", "--url", &url, "--", "true"])).assert(0, &[]);
    let taken = url.trim_start_matches("lockkeeper://");
    Ended::run(&mut dev(taken)).assert(69, &["another process has it", "[LK-LISTEN]"]);

    server.signal(Signal::TERM);
    server.assert(0, &[]);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "its directory is gone");
}

#[test]
fn zookeepers_clients_are_served_where_it_is_said() {
    let home = Home::new();
    let line = ["dev", "--listen", "127.0.0.1:0", "--zookeeper", "127.0.0.1:0"];
    let mut server = home.spawn_command(&mut home.command(&line));
    let address = wait_for("its address", || {
        let said = server.said();
        let mut lines = said.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix("For ZooKeeper clients: ")).map(str::to_owned)
    });
    let srvr = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"srvr").unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    };
    wait_for("a leader", || srvr().contains("\nMode: standalone\n").then_some(()));
    server.signal(Signal::TERM);
    server.assert(0, &[]);
}
