//! `server` and `dev` as processes.

use std::fs;

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
    let mut command = home.command(&["dev", "--listen", "127.0.0.1:0"]);
    let log = fs::File::create(home.path("log")).unwrap();
    let mut dev = command.env("TMPDIR", &directory).stderr(log).spawn().expect("it starts");
    let url = wait_for("its URL", || {
        let log = home.read("log");
        let line = log.lines().find_map(|line| line.trim().strip_prefix("export LOCKKEEPER_URL="));
        line.map(str::to_owned)
    });
    Ended::run(&mut home.command(&["lock", "x", "--url", &url, "--", "true"])).assert(0, &[]);
    let taken = url.trim_start_matches("lockkeeper://").to_owned();
    let second = Ended::run(home.command(&["dev", "--listen", &taken]).env("TMPDIR", &directory));
    second.assert(69, &["another process has it", "[LK-LISTEN]"]);

    crate::home::kill(i32::try_from(dev.id()).unwrap(), Signal::TERM);
    let ended = wait_for("it ends", || dev.try_wait().unwrap());
    assert!(ended.success(), "{}", home.read("log"));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "its directory is gone");
}
