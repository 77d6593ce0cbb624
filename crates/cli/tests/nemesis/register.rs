//! What the locks protect: a register that refuses a write whose token is older than one that it
//! has seen. It lives in the nemesis' own process, so that its answers are in one order and
//! outlive every fault.
//!
//! Only exclusive grants make older tokens stale: shared and permit holders are compared with the
//! newest exclusive writer.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use lockkeeper_core::{Mode, Token};
use lockkeeper_sim::Seen;
use parking_lot::Mutex;

use crate::clock;
use crate::history::{Recorder, of_mode_text};

/// The newest exclusive writer's token for each lock.
type Newest = Arc<Mutex<HashMap<String, Token>>>;

/// Serves `lock mode token` lines on a Unix socket, each answered by `1` or `0`, until the process
/// ends.
pub(crate) fn serve(path: &Path, recorder: &Recorder) {
    let listener = UnixListener::bind(path).expect("a socket in the run's own directory");
    let (newest, recorder) = (Newest::default(), recorder.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (newest, recorder) = (Arc::clone(&newest), recorder.clone());
            // A worker that is killed leaves a broken connection; that is its end.
            std::thread::spawn(move || answer(&stream, &newest, &recorder));
        }
    });
}

fn answer(stream: &UnixStream, newest: &Newest, recorder: &Recorder) -> Option<()> {
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        let mut words = line.split(' ');
        let lock = words.next()?.to_owned();
        let mode = of_mode_text(words.next()?)?;
        let token = Token(words.next()?.parse().ok()?);
        let accepted = {
            let mut newest = newest.lock();
            let newest = newest.entry(lock.clone()).or_insert(Token(0));
            let accepted = token >= *newest;
            if accepted && mode == Mode::Exclusive {
                *newest = token;
            }
            recorder.see(clock::now(), Seen::Wrote { lock, mode, token, accepted });
            accepted
        };
        writeln!(&*stream, "{}", u8::from(accepted)).ok()?;
    }
    Some(())
}
