//! Heartbeats on their way: from the node that has a client's connection to the leader, and the
//! leader's confirmations back.
//!
//! A node reports which sessions it has heard from in one message for all of them, at once if
//! nothing was reported lately, and at most once a [`TICK`]; while there is nothing to report
//! nothing happens. The leader takes note, waits until a quorum has acknowledged something that it
//! sent after the report came, and confirms; its clock and its followers' need not agree. A leader
//! that has been deposed can't confirm, and no log entry is spent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::SessionId;
use openraft::LinearizerOption;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Sink;
use crate::inner::{Inner, Route};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::peer::message::ToLeader;
use crate::watch::Told;

/// The time between two reports.
const TICK: Duration = Duration::from_millis(20);

/// Sessions in one report: what a frame between peers has room for.
pub(crate) const REPORT_SESSIONS_MAX: usize = 10_000;

/// Reports that wait for their confirmation; those beyond are forgotten, and renew nothing.
const OPEN_REPORTS_MAX: usize = 256;

/// Heartbeats that wait to be reported; those beyond are forgotten, and renew nothing.
const BEATS_MAX: usize = 1_000_000;

/// What this node heard from clients and has not settled yet.
#[derive(Default)]
pub(crate) struct Living {
    state: Mutex<State>,
    heard: Notify,
}

#[derive(Default)]
struct State {
    /// Heard from since the last report.
    sessions: BTreeSet<SessionId>,
    /// Heartbeats that want a confirmation, not yet reported.
    beats: Vec<Beat>,
    /// Reports on their way, by number.
    open: BTreeMap<u64, Vec<Beat>>,
    number: u64,
}

struct Beat {
    session: SessionId,
    id: u64,
    sink: Arc<dyn Sink>,
}

/// One report.
pub(crate) struct Report {
    pub(crate) number: u64,
    pub(crate) sessions: Vec<SessionId>,
}

impl Living {
    pub(crate) fn heard(&self, session: SessionId) {
        let is_first = {
            let mut state = self.state.lock();
            let is_first = state.sessions.is_empty();
            state.sessions.insert(session);
            is_first
        };
        if is_first {
            self.heard.notify_one();
        }
    }

    pub(crate) fn beat(&self, session: SessionId, id: u64, sink: &Arc<dyn Sink>) {
        {
            let mut state = self.state.lock();
            state.sessions.insert(session);
            if state.beats.len() < BEATS_MAX {
                state.beats.push(Beat { session, id, sink: Arc::clone(sink) });
            }
        }
        self.heard.notify_one();
    }

    /// What there is to report, at most one frame's worth.
    fn next_report(&self) -> Option<Report> {
        let mut state = self.state.lock();
        let mut sessions = std::mem::take(&mut state.sessions);
        if let Some(&first_left) = sessions.iter().nth(REPORT_SESSIONS_MAX) {
            state.sessions = sessions.split_off(&first_left);
        }
        if sessions.is_empty() {
            return None;
        }
        let beats = std::mem::take(&mut state.beats);
        let (reported, left): (Vec<_>, _) =
            beats.into_iter().partition(|beat| sessions.contains(&beat.session));
        state.beats = left;
        state.number += 1;
        let number = state.number;
        if !reported.is_empty() {
            state.open.insert(number, reported);
            if state.open.len() > OPEN_REPORTS_MAX {
                state.open.pop_first();
            }
        }
        Some(Report { number, sessions: sessions.into_iter().collect() })
    }

    /// Whether anybody waits for this report's confirmation.
    fn is_awaited(&self, number: u64) -> bool {
        self.state.lock().open.contains_key(&number)
    }

    /// A report was confirmed, but for the sessions in `except`, which are in order; with `None`
    /// it was not confirmed at all, and renews nothing.
    pub(crate) fn settle(&self, number: u64, except: Option<&[SessionId]>) {
        let beats = self.state.lock().open.remove(&number);
        let (Some(beats), Some(except)) = (beats, except) else { return };
        let mut told = Told::default();
        for beat in beats.iter().filter(|beat| except.binary_search(&beat.session).is_err()) {
            beat.sink.confirmed(beat.id);
            told.add(&beat.sink);
        }
        told.flush();
    }

    /// The leader that was told is gone: everything that is open is to be reported to the next.
    pub(crate) fn reopen(&self) {
        let mut state = self.state.lock();
        let open = std::mem::take(&mut state.open);
        for beat in open.into_values().flatten() {
            state.sessions.insert(beat.session);
            state.beats.push(beat);
        }
        if !state.sessions.is_empty() {
            self.heard.notify_one();
        }
    }
}

/// Reports to whoever leads, for as long as this node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        inner.living.heard.notified().await;
        // Whoever is read in the same turn comes along.
        tokio::task::yield_now().await;
        let mut route = inner.route.subscribe();
        // The node keeps the other end for as long as it lives.
        let _ = route.wait_for(|route| *route != Route::Nowhere).await;
        let route = *route.borrow();
        while let Some(report) = inner.living.next_report() {
            match route {
                Route::Here(_) => report_here(&inner, report),
                Route::There(term) => {
                    let Report { number, sessions } = report;
                    inner.link.send(&ToLeader::Living { term, number, sessions });
                }
                Route::Nowhere => unreachable!("it was waited for"),
            }
        }
        sleep(TICK).await;
    }
}

fn report_here(inner: &Arc<Inner>, report: Report) {
    let now = inner.now();
    inner.deadlines.heard(&report.sessions, now);
    if inner.living.is_awaited(report.number) {
        let confirming = Arc::clone(inner);
        inner.spawn(async move {
            let except = confirm(&confirming, &report.sessions).await;
            confirming.living.settle(report.number, except.as_deref());
        });
    }
}

/// As the leader: waits until a quorum has acknowledged something sent after now, and says which of
/// `sessions` are not to be confirmed nevertheless. `None`: there is no such quorum.
pub(crate) async fn confirm(inner: &Inner, sessions: &[SessionId]) -> Option<Vec<SessionId>> {
    #[cfg(feature = "mutations")]
    if mutated(Mutation::ConfirmWithoutQuorum) {
        return Some(inner.deadlines.unconfirmable(sessions));
    }
    // Nothing is sent for this: the next heartbeat or entry brings the acknowledgement.
    let patience = inner.config.timers.election_max * 2;
    let option = LinearizerOption::new(Some(Duration::ZERO), false).with_wait_timeout(patience);
    let linearizer = inner.raft().get_read_linearizer(option).await.ok()?;
    // Read ids are not below the first entry of the term; its application begins the reign.
    let index = linearizer.read_log_id().index();
    inner.applied(index).await;
    Some(inner.deadlines.unconfirmable(sessions))
}
