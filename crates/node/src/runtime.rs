//! The runtime under openraft: tokio, with chance that comes from the node's
//! [`Environment`](crate::Environment) and not from the system.
//!
//! openraft asks for chance in a place without arguments, so it is kept by thread: each node seeds
//! the thread that it starts on, which is its own. Nodes that share one thread share its chance.
//!
//! And but for one limit: openraft waits for a vote no longer than a follower waits for its leader,
//! whatever the disk takes that the vote is written to. Here it waits for [`VOTE_WAIT`]; how long
//! it waits for the answer to a pre-vote, which isn't written, the transport knows. Nothing else
//! in it uses that call, but for one wait at its end.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use openraft::base::OptionalSend;
use openraft::impls::TokioRuntime;
use openraft_rt::AsyncRuntime;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::standing::VOTE_WAIT;

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Seeds this thread's chance.
pub(crate) fn seed(seed: u64) {
    SEED.set(seed);
}

/// Another seed each time: the steps of a Weyl sequence, which [`SmallRng`] mixes.
fn next_seed() -> u64 {
    let seed = SEED.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEED.set(seed);
    seed
}

/// tokio, but for chance.
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration.max(VOTE_WAIT), future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> SmallRng {
        SmallRng::seed_from_u64(next_seed())
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
