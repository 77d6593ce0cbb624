//! What a server does of itself: it lets go of clients that it can't serve, knows the members, and
//! removes what nobody needs.

use std::fmt::Write;
use std::future::pending;
use std::sync::Weak;
use std::time::Duration;

use lockkeeper_core::{Command, Stamp};
use lockkeeper_node::{MemberStatus, Serving, Status};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::reads::CONFIG;
use super::{Front, ZooKeeperSettings};

/// Looks after the connections, for as long as there is a front end.
pub(super) async fn watch_quorum(front: Weak<Front>, mut serving: watch::Receiver<Serving>) {
    let mut lost_at = None;
    loop {
        let Some(strong) = front.upgrade() else { return };
        let is_ready = serving.borrow_and_update().is_ready;
        strong.learn_members(&strong.node.status());
        if is_ready == lost_at.is_some() && strong.settings.read_only {
            tell_of_reading(!is_ready);
        }
        let limit = if is_ready {
            lost_at = None;
            // Where there is a majority, nobody has to be content with reading.
            let connections = strong.hub.connections();
            let local = connections.iter().filter(|outbox| outbox.view().is_local);
            local.for_each(|outbox| outbox.finish());
            None
        } else {
            // Other members may be told of meanwhile, which changes nothing here.
            let since = *lost_at.get_or_insert_with(Instant::now);
            Some(since + patience(&strong.settings)).filter(|limit| *limit > Instant::now())
        };
        drop(strong);
        let is_over = async {
            match limit {
                Some(limit) => sleep_until(limit).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = serving.changed() => if changed.is_err() {
                return;
            },
            () = is_over => send_elsewhere(&front),
        }
    }
}

/// There has been no majority for too long.
fn send_elsewhere(front: &Weak<Front>) {
    let Some(strong) = front.upgrade() else { return };
    let connections = strong.hub.connections();
    let global = connections.iter().filter(|outbox| !outbox.view().is_local);
    let closed = global.inspect(|outbox| outbox.finish()).count();
    if closed > 0 {
        tracing::warn!(closed, "no majority: ZooKeeper clients are sent elsewhere");
    }
}

fn tell_of_reading(is_reading_only: bool) {
    if is_reading_only {
        tracing::info!("no majority: read-only service for ZooKeeper clients that ask for it");
    } else {
        tracing::info!("a majority again: the read-only service ends");
    }
}

/// How long clients are kept without a majority: less than it takes for any session to be ended by
/// those who have one, so that nobody reads here for long what it has lost there.
fn patience(settings: &ZooKeeperSettings) -> Duration {
    settings.tick.min(settings.session_timeout_min / 2)
}

/// Removes containers and nodes whose time is up, on the leader alone, evenly over time.
pub(super) async fn collect(front: Weak<Front>) {
    let mut clock = StampClock { stamp: Stamp(0), since: Instant::now() };
    loop {
        let Some(strong) = front.upgrade() else { return };
        let interval = strong.settings.collect_interval;
        drop(strong);
        sleep(interval).await;
        let Some(strong) = front.upgrade() else { return };
        if !strong.node.leads() {
            continue;
        }
        let per_minute = strong.settings.collected_per_minute_max.max(1);
        let pause = Duration::from_secs(60) / per_minute;
        let max = interval.as_millis().saturating_mul(per_minute.into()) / 60_000;
        let max = usize::try_from(max).unwrap_or(usize::MAX).max(1);
        let paths = strong.node.query(|state, stamp| {
            let now = clock.now(stamp, Instant::now());
            state.tree().collectable(now, max)
        });
        drop(strong);
        for path in paths {
            let Some(strong) = front.upgrade() else { return };
            // Whether it is still to be removed is decided when the command is applied.
            strong.node.propose(&Command::CollectNode { path: &path }, 0, &strong.hub_sink);
            drop(strong);
            sleep(pause).await;
        }
    }
}

/// What the log's clock would say now. It stands still while nothing is written, but a node's time
/// goes on.
struct StampClock {
    stamp: Stamp,
    since: Instant,
}

impl StampClock {
    /// Never ahead of the leader's clock, which made `stamp`: it is counted from when that was
    /// seen.
    fn now(&mut self, stamp: Stamp, now: Instant) -> Stamp {
        if self.stamp != stamp {
            *self = Self { stamp, since: now };
        }
        let elapsed = now.saturating_duration_since(self.since).as_millis();
        Stamp(stamp.0.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }
}

impl Front {
    /// Keeps the content of the node that lists the members, and tells whoever watches it.
    pub(super) fn learn_members(&self, status: &Status) {
        let text = members(&status.members);
        {
            let known = &mut *self.members.lock();
            if **known == *text.as_bytes() {
                return;
            }
            let is_first = known.is_empty();
            *known = text.into_bytes();
            if is_first {
                return;
            }
        }
        let zxid = self.node.query(|state, _| state.revision().0.cast_signed());
        self.hub.data_changed(CONFIG, zxid);
    }
}

/// The members as ZooKeeper lists them, without the addresses of clients: those who look for some
/// find none, and go on with what they were told. Nothing for a lone server.
fn members(members: &[MemberStatus]) -> String {
    let mut text = String::new();
    if members.len() < 2 {
        return text;
    }
    for MemberStatus { member, is_voter, .. } in members {
        let Some((host, port)) = member.peer_address.rsplit_once(':') else { continue };
        let Ok(port) = port.parse::<u16>() else { continue };
        // Clients refuse to read a list in which the two ports are one.
        let other = if port == u16::MAX { port - 1 } else { port + 1 };
        let role = if *is_voter { "participant" } else { "observer" };
        let _ = writeln!(text, "server.{}={host}:{port}:{other}:{role}", member.id);
    }
    text.push_str("version=0");
    text
}

#[cfg(test)]
mod tests {
    use lockkeeper_node::Member;

    use super::*;

    #[test]
    fn members_are_listed_as_zookeepers() {
        let member = |id, address: &str, is_voter| MemberStatus {
            member: Member { id, peer_address: address.to_owned() },
            is_voter,
            heard_ms_ago: None,
            round_trip_micros: None,
            matched_index: None,
        };
        let one = member(1, "a.example:2380", true);
        assert_eq!(members(std::slice::from_ref(&one)), "");
        assert_eq!(
            members(&[one, member(12, "[::1]:65535", false)]),
            "server.1=a.example:2380:2381:participant\n\
             server.12=[::1]:65535:65534:observer\n\
             version=0"
        );
    }
}
