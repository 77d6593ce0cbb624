//! When this node stands for election.
//!
//! A vote is written before it is given, and so is a candidate's own. While that takes longer than
//! a follower waits for its leader, whoever stands again at once makes the votes that are under way
//! worthless, and so does every other; then nobody is ever elected. So a candidate waits for votes
//! for as long as a disk may take ([`VOTE_WAIT`]), and a node that has seen its own disk take long
//! over a vote gives whoever is being elected the time for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::Monotonic;
use crate::inner::Inner;

/// How long a candidate waits for a vote: a node whose disk takes longer is unfit.
pub(crate) const VOTE_WAIT: Duration = Duration::from_secs(5);

/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(10);

/// This node stands from now on, or only after having been quiet for a while.
pub(crate) fn begin(inner: &Arc<Inner>, quiet: Duration) {
    if quiet.is_zero() {
        inner.raft().runtime_config().elect(true);
    } else {
        rest(inner, quiet);
    }
}

/// A vote was written, which took so long. If two of that, one after the other, don't fit into the
/// shortest election time-out, this node stands no more for a while: until a candidate can have
/// been elected and heard of, which takes four, and not at the same time as the others.
pub(crate) fn note_vote(inner: &Arc<Inner>, took: Duration) {
    let election_min = inner.config.timers.election_min;
    if took * 2 < election_min || inner.is_single_voter() {
        return;
    }
    tracing::warn!(
        took_ms = took.as_millis(),
        election_timeout_ms = election_min.as_millis(),
        "writing a vote took long: with this disk elections are slow, and a longer election \
         time-out avoids needless ones"
    );
    let took = took.min(REST_MAX);
    let chance = u32::try_from(inner.environment.random.next_u64() % 1_024).unwrap_or_default();
    rest(inner, (4 * (took + took * chance / 1_024)).min(REST_MAX));
}

/// An entry was applied, which took so long. Meanwhile this node has heard nobody, and its leader,
/// which does the same work, may have said nothing. So its silence says nothing yet.
pub(crate) fn note_apply(inner: &Arc<Inner>, took: Duration) {
    let election_min = inner.config.timers.election_min;
    if took * 2 < election_min {
        return;
    }
    // While the log is read at the start, nobody stands.
    let has_started = inner.raft.get().is_some();
    if has_started && !inner.is_single_voter() {
        rest(inner, (election_min + 2 * took).min(REST_MAX));
    }
}

/// Doesn't stand for so long, from now on.
fn rest(inner: &Arc<Inner>, time: Duration) {
    let until = inner.now().plus(time);
    {
        let mut rests_until = inner.rests_until.lock();
        *rests_until = until.max(*rests_until);
        inner.raft().runtime_config().elect(false);
    }
    let resting = Arc::clone(inner);
    inner.spawn(async move {
        sleep(time).await;
        stand_again(&resting, until);
    });
}

/// Stands again, unless a longer rest was ordered since.
fn stand_again(inner: &Inner, until: Monotonic) {
    let rests_until = inner.rests_until.lock();
    if *rests_until <= until {
        inner.raft().runtime_config().elect(true);
    }
}
