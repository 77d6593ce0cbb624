//! A caller who wants nothing of what the others want, in a process of its own: what it notices of
//! a load is the servers' doing, and not that it stands in line behind the load's own tasks. The
//! machine's cores it still shares with them.

use std::pin::pin;
use std::process::Stdio;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use lockkeeper::Client;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::sleep;

use super::Bench;
use super::report::{new_histogram, record};
use crate::output;

/// The process, as whoever makes the load sees it. It ends with its standard input.
pub(super) struct Bystander {
    _process: Child,
    orders: ChildStdin,
    seen: Lines<BufReader<ChildStdout>>,
}

impl Bystander {
    /// Starts it, and waits until it is connected.
    pub(super) async fn start(url: &str, ttl: Duration) -> Result<Self> {
        let program = std::env::current_exe().context("where this program is")?;
        let ttl = format!("{}ms", ttl.as_millis());
        let mut process = Command::new(program)
            .args(["bench", "bystander", "--url", url, "--ttl", &ttl])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the bystander can't be started")?;
        let orders = process.stdin.take().context("its input is a pipe")?;
        let output = process.stdout.take().context("its output is a pipe")?;
        let seen = BufReader::new(output).lines();
        let mut bystander = Self { _process: process, orders, seen };
        let ready = bystander.line().await?;
        ensure!(ready == READY, "the bystander said: {ready}");
        Ok(bystander)
    }

    /// What it sees while `work` is being done: how long each of its locks and unlocks takes.
    pub(super) async fn beside<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<(Histogram<u64>, T)> {
        self.orders.write_all(b"begin\n").await?;
        let done = work.await;
        self.orders.write_all(b"end\n").await?;
        Ok((read_histogram(&self.line().await?)?, done))
    }

    async fn line(&mut self) -> Result<String> {
        self.seen.next_line().await?.context("the bystander has ended: its message is above")
    }
}

const READY: &str = "ready";

/// Between two of its calls. A caller who asks again at once is a load himself: on a disk that
/// takes no time he keeps three servers so busy that whoever has a lower priority gets nothing.
const PAUSE: Duration = Duration::from_millis(1);

/// How long it waits to be served: an outage is what it is there to see, and not to die of.
const PATIENCE: Duration = Duration::from_secs(600);

/// The process itself: locks and unlocks a name that nobody else wants, one after the other, from
/// one line of its input to the next, and prints what it saw.
pub(super) async fn run(bench: &Bench, url: &str) -> Result<()> {
    let client = Client::builder().url(url).ttl(bench.ttl).connect_timeout(PATIENCE);
    let client = client.connect().await?;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    print(READY)?;
    while orders.next_line().await?.is_some() {
        let mut seen = new_histogram();
        let mut order = pin!(orders.next_line());
        // The one that is under way when the order comes counts too: it may be the longest.
        loop {
            let asked = Instant::now();
            client.lock("bench/bystander").acquire().await?.release().await?;
            record(&mut seen, asked.elapsed());
            tokio::select! {
                biased;
                order = &mut order => { order?; break; }
                () = sleep(PAUSE) => {}
            }
        }
        print(&write_histogram(&seen))?;
    }
    client.close().await;
    Ok(())
}

fn print(line: &str) -> Result<()> {
    output::line(line).map_err(|failure| anyhow::anyhow!(failure.to_string()))
}

fn write_histogram(histogram: &Histogram<u64>) -> String {
    let values = histogram.iter_recorded();
    let words =
        values.map(|step| format!("{}:{}", step.value_iterated_to(), step.count_at_value()));
    words.collect::<Vec<_>>().join(" ")
}

fn read_histogram(line: &str) -> Result<Histogram<u64>> {
    let mut histogram = new_histogram();
    for word in line.split_whitespace() {
        let (value, count) = word.split_once(':').context("no value and count")?;
        histogram.record_n(u64::from_str(value)?, u64::from_str(count)?)?;
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_as_it_was_written() {
        let mut histogram = new_histogram();
        for micros in [1, 5, 5, 90_000] {
            record(&mut histogram, Duration::from_micros(micros));
        }
        let read = read_histogram(&write_histogram(&histogram)).unwrap();
        assert_eq!(read, histogram);
    }
}
