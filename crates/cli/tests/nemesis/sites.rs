//! Three data centres: a network namespace for each server, joined by virtual cables to this one,
//! where the proxies and the workers are. Packets are dropped by nftables, so that a cut network
//! loses connection attempts and ends of connections as a real one does.
//!
//! The delay between the sites comes from the kernel (`tc netem`) where it can do that, and from
//! the proxies where it can't.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::proxy::{End, Net};
use crate::servers::{FOUNDERS, run};

/// The present run is one in data centres: its addresses are other ones. Runs follow each other.
static IN_SITES: AtomicBool = AtomicBool::new(false);

/// How far each site is from the middle; two of them are 19, 35 and 40 ms apart one way, so that an
/// answer takes 38 to 80 ms.
const DISTANCE_MS: [u64; 3] = [7, 12, 28];

/// The namespaces, cables and rules of one run; gone when dropped.
pub(crate) struct Sites {
    /// The kernel delays packets.
    has_netem: bool,
}

/// Whether the present run has sites.
pub(crate) fn are_used() -> bool {
    IN_SITES.load(Ordering::Relaxed)
}

/// The namespace of a server.
pub(crate) fn namespace(id: End) -> String {
    format!("lk{}s{id}", std::process::id() % 100_000)
}

/// This side's end of the cable to a server.
fn cable(id: End) -> String {
    format!("lk{}c{id}", std::process::id() % 100_000)
}

fn table() -> String {
    format!("lk{}", std::process::id())
}

/// Where a server is, as everybody reaches it.
pub(crate) fn server(id: End) -> IpAddr {
    address(id, 2)
}

/// Where the proxy before a server is.
pub(crate) fn proxy(id: End) -> IpAddr {
    address(id, 1)
}

fn address(id: End, last: u8) -> IpAddr {
    let run = u8::try_from(std::process::id() % 100).unwrap_or(0);
    let site = u8::try_from(id).unwrap_or(0);
    IpAddr::V4(Ipv4Addr::new(10, 100 + run, site, last))
}

impl Sites {
    /// Lays them out.
    ///
    /// # Errors
    ///
    /// What can't be had here, and what to install.
    pub(crate) fn new() -> Result<Self, String> {
        // What is there already goes with this value, even if the rest can't be had.
        let mut sites = Self { has_netem: true };
        for id in FOUNDERS {
            sites.lay(id).map_err(|error| {
                format!("{error}. It needs root, and Debian's packages iproute2 and nftables")
            })?;
        }
        run("nft", &["add", "table", "inet", &table()])?;
        run(
            "nft",
            &[&format!(
                "add chain inet {} cut {{ type filter hook prerouting priority -300; }}",
                table()
            )],
        )?;
        IN_SITES.store(true, Ordering::Relaxed);
        Ok(sites)
    }

    fn lay(&mut self, id: End) -> Result<(), String> {
        let (namespace, cable) = (namespace(id), cable(id));
        run("ip", &["netns", "add", &namespace])?;
        let far = ["type", "veth", "peer", "name", "wan", "netns", &namespace];
        run("ip", &[&["link", "add", &cable], &far[..]].concat())?;
        let near = format!("{}/24", proxy(id));
        run("ip", &["addr", "add", &near, "dev", &cable])?;
        run("ip", &["link", "set", &cable, "up"])?;
        let inside = |arguments: &[&str]| run("ip", &[&["-n", &namespace], arguments].concat());
        inside(&["addr", "add", &format!("{}/24", server(id)), "dev", "wan"])?;
        inside(&["link", "set", "wan", "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        inside(&["route", "add", "default", "via", &proxy(id).to_string()])?;
        let distance = format!("{}ms", DISTANCE_MS[place(id)]);
        let netem = ["root", "netem", "delay", &distance];
        let near = run("tc", &[&["qdisc", "add", "dev", &cable], &netem[..]].concat());
        let tc = ["netns", "exec", &namespace, "tc", "qdisc", "add", "dev", "wan"];
        let far = run("ip", &[&tc, &netem[..]].concat());
        self.has_netem &= near.is_ok() && far.is_ok();
        Ok(())
    }

    /// Gives the proxies the distance, if the kernel doesn't know it. The `others` are as far away
    /// as the middle.
    pub(crate) fn set_distances(&self, net: &Net, others: &[End]) {
        println!(
            "sites: {}",
            if self.has_netem {
                "the kernel delays packets (netem)"
            } else {
                "this kernel has no netem: the proxies delay what they carry"
            }
        );
        if self.has_netem {
            return;
        }
        for from in FOUNDERS {
            let distance = |id| Duration::from_millis(DISTANCE_MS[place(id)]);
            for to in FOUNDERS.into_iter().filter(|&to| to != from) {
                net.set_distance(from, to, distance(from) + distance(to));
            }
            for &other in others {
                net.set_distance(from, other, distance(from));
                net.set_distance(other, from, distance(from));
            }
        }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        IN_SITES.store(false, Ordering::Relaxed);
        // Whatever was laid; the cables go with the namespaces.
        drop(run("nft", &["delete", "table", "inet", &table()]));
        for id in FOUNDERS {
            drop(run("ip", &["netns", "del", &namespace(id)]));
        }
    }
}

fn place(id: End) -> usize {
    usize::try_from(id - 1).unwrap_or(0) % DISTANCE_MS.len()
}

/// What packets a cut drops.
pub(crate) enum Cut {
    /// All that a site sends; what is sent to it arrives.
    From(End),
    /// All that a site sends to another's proxy.
    Between(End, End),
}

/// Drops packets from now on.
pub(crate) fn cut(cut: &Cut) -> Result<(), String> {
    let rule = match *cut {
        Cut::From(id) => format!("iifname {} drop", cable(id)),
        Cut::Between(from, to) => format!("iifname {} ip daddr {} drop", cable(from), proxy(to)),
    };
    run("nft", &[&format!("add rule inet {} cut {rule}", table())]).map(drop)
}

/// Drops none any more.
pub(crate) fn mend() -> Result<(), String> {
    run("nft", &["flush", "chain", "inet", &table(), "cut"]).map(drop)
}
