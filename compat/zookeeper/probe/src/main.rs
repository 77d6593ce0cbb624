//! Looks at ZooKeeper servers from outside, over the bare protocol.
//!
//! `differential` sends the same random steps to two servers and compares all that comes back;
//! `load` runs the classic lock recipe over a few connections and says how many locks a second
//! were taken and released; `handover` times one lock that thousands wait for; `full` says what a
//! full tree and many watches cost; `stalls` says how long others wait for who does something long.
//! Servers are commands by the contract of `../lib.sh`.
//!
//! **Invariant.** Nothing here comes from the product: what both sides share is the specification.

mod client;
mod differential;
mod full;
mod handover;
mod jute;
mod load;
#[cfg(feature = "library")]
mod load_library;
mod servers;
mod stalls;

use std::collections::HashMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let flags = match Flags::parse(arguments) {
        Ok(flags) => flags,
        Err(error) => return usage(&error),
    };
    let result = match command.as_str() {
        "differential" => differential::run(&flags),
        "load" => load::run(&flags),
        "full" => full::run(&flags),
        "handover" => handover::run(&flags),
        "stalls" => stalls::run(&flags),
        other => return usage(&format!("no such command: '{other}'")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run: {error}");
            ExitCode::from(2)
        }
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!(
        "{error}\n\
         probe differential [--cases N] [--seed N] [--steps N] [--seconds N]\n\
         \x20     [--without TEXT,TEXT]: leaves out the steps that are told with such a text\n\
         \x20     REFERENCE_CMD and ZK_SERVER_CMD name the two servers\n\
         probe load [--servers 3] [--connections 16] [--workers 64,1024] [--locks N]\n\
         \x20     [--client lean|library] [--warm SECONDS] [--seconds 10] [--runs 3]\n\
         probe handover [--servers 3] [--connections 16] [--waiters 2,20000] [--rounds 300]\n\
         probe full [--servers 3] [--connections 16] [--znodes 1000000] [--watches 200000] [--seconds 5]\n\
         probe stalls [--servers 3] [--watches 200000] [--ephemerals 100000]\n\
         \x20     ZK_SERVER_CMD names the server"
    );
    ExitCode::from(2)
}

/// `--name value` pairs.
pub struct Flags(HashMap<String, String>);

impl Flags {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut flags = HashMap::new();
        while let Some(name) = arguments.next() {
            let key = name.strip_prefix("--").ok_or_else(|| format!("'{name}' is no flag"))?;
            let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
            flags.insert(key.to_owned(), value);
        }
        Ok(Self(flags))
    }

    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        match self.0.get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} is no number: '{text}'")),
        }
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        self.0
            .get(name)
            .map(|text| text.split(',').map(str::to_owned).collect())
            .unwrap_or_default()
    }

    pub fn numbers(&self, name: &str, default: &[u64]) -> Result<Vec<u64>, String> {
        match self.0.get(name) {
            None => Ok(default.to_vec()),
            Some(text) => text
                .split(',')
                .map(|number| number.parse().map_err(|_| format!("--{name}: '{number}'")))
                .collect(),
        }
    }
}
