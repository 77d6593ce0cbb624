//! What a server does of itself: it lets go of clients that it can't serve, and removes what nobody
//! needs.

use std::future::pending;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{Command, Stamp};
use lockkeeper_node::Serving;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Front, ZooKeeperSettings};

/// Looks after the connections, for as long as there is a front end.
pub(super) async fn watch_quorum(front: Weak<Front>, mut serving: watch::Receiver<Serving>) {
    let mut lost_at = None;
    loop {
        let Some(strong) = front.upgrade() else { return };
        // Other members may be told of meanwhile, which changes nothing here.
        let next = if serving.borrow_and_update().is_ready {
            lost_at = None;
            serve_all(&strong);
            None
        } else {
            do_without(&strong, *lost_at.get_or_insert_with(Instant::now))
        };
        drop(strong);
        let is_due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = serving.changed() => if changed.is_err() {
                return;
            },
            () = is_due => {}
        }
    }
}

/// There is a majority: nobody has to be content with reading.
fn serve_all(front: &Front) {
    if front.is_reading_only.swap(false, Ordering::Relaxed) {
        tracing::info!("a majority again: the read-only service ends");
    }
    let connections = front.hub.connections();
    let local = connections.iter().filter(|outbox| outbox.view().is_local);
    local.for_each(|outbox| outbox.finish());
}

/// There has been no majority since `lost_at`. Returns when there is more to be done about it.
fn do_without(front: &Front, lost_at: Instant) -> Option<Instant> {
    let now = Instant::now();
    let silence = front.place.get().map_or(Duration::ZERO, |place| place.silence);
    let (reading, parting) =
        (lost_at + grace(&front.settings), lost_at + patience(&front.settings, silence));
    if front.settings.read_only
        && reading <= now
        && !front.is_reading_only.swap(true, Ordering::Relaxed)
    {
        tracing::info!("no majority: read-only service for ZooKeeper clients that ask for it");
    }
    if parting <= now {
        let connections = front.hub.connections();
        let global = connections.iter().filter(|outbox| !outbox.view().is_local);
        let closed = global.inspect(|outbox| outbox.finish()).count();
        if closed > 0 {
            tracing::warn!(closed, "no majority: ZooKeeper clients are sent elsewhere");
        }
    }
    [reading, parting].into_iter().filter(|next| *next > now).min()
}

/// How long clients are kept without a majority: less than it takes for any session to be ended by
/// those who have one, so that nobody reads here what it has lost there. The last word from them
/// may be as old as `silence` when its end is noticed.
fn patience(settings: &ZooKeeperSettings, silence: Duration) -> Duration {
    let shortest = settings.session_timeout_min;
    settings.tick.min(shortest / 2).min(shortest.saturating_sub(silence))
}

/// How long there must have been no majority before anybody may read without one: ZooKeeper's own
/// figure. An election is over sooner.
fn grace(settings: &ZooKeeperSettings) -> Duration {
    settings.tick.max(Duration::from_secs(2))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_served_for_longer_than_the_shortest_session_lives_without_a_word() {
        let seconds = Duration::from_secs;
        for (shortest, silence, expected) in [(6, 1, 3), (4, 1, 2), (6, 4, 2), (6, 8, 0)] {
            let session_timeout_min = seconds(shortest);
            let settings = ZooKeeperSettings { session_timeout_min, ..Default::default() };
            let patience = patience(&settings, seconds(silence));
            assert_eq!(patience, seconds(expected), "{shortest} {silence}");
        }
    }
}
